// Bytes that only snapshots of an object hold, as they were when its view was opened; null: not known.
import { api } from './api'

export const held: Record<number, number | null> = $state({})

export async function loadHeld(id: number) {
  held[id] = await api.held(id).catch(() => null)
}
