// The last change of compression of each object in this tab: what it was, so that it can be undone.
export interface Change {
  at: number
  /** `lz4 -> zstd-3`. */
  text: string
  /** What sets the former values again; null: inherited. */
  back: Record<string, string | null>
}

export const changes = $state<Record<number, Change | undefined>>({})
