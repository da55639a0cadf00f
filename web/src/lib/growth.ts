// When the pool will be full, by the growth of what it stores: the slope of a line through the last week.
import { duration } from './format'
import type { Series } from './types'

const DAY_S = 86400
/** Parts that take room and stay: overwritten data comes back by cleaning. */
const LASTING = ['live', 'map']
const POINTS_MIN = 8

/** Bytes a day; null: there are too few points. */
export function growth(series: Series): number | null {
  const columns = series.series.filter((column) => LASTING.includes(column.key))
  const points: [number, number][] = []
  const length = columns[0]?.values.length ?? 0
  for (let at = 0; at < length; at += 1) {
    const values = columns.map((column) => column.values[at])
    if (values.every((value) => value != null)) points.push([at * series.step, values.reduce<number>((sum, value) => sum + (value ?? 0), 0)])
  }
  if (points.length < POINTS_MIN) return null
  const mean = (pick: 0 | 1) => points.reduce((sum, point) => sum + point[pick], 0) / points.length
  const [x, y] = [mean(0), mean(1)]
  const slope = points.reduce((sum, point) => sum + (point[0] - x) * (point[1] - y), 0) / points.reduce((sum, point) => sum + (point[0] - x) ** 2, 0)
  return slope * DAY_S
}

export function untilFull(bytes_a_day: number, available: number): string {
  const days = available / bytes_a_day
  if (bytes_a_day <= 0 || days > 3650) return "not filling up at this week's rate"
  return days < 3 ? `full in about ${duration(days * DAY_S)} at this week's rate` : `full in about ${Math.round(days)} days at this week's rate`
}
