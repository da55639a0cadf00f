// Squarified tree map (Bruls, Huizing, van Wijk 2000): rectangles as square as can be, areas as the weights.

export interface Tile {
  index: number
  x: number
  y: number
  w: number
  h: number
}

/** Tiles for weights in descending order, in a rectangle of this size. */
export function treemap(weights: number[], width: number, height: number): Tile[] {
  const total = weights.reduce((sum, weight) => sum + weight, 0)
  const tiles: Tile[] = []
  if (total <= 0 || width <= 0 || height <= 0) return tiles
  const areas = weights.map((weight) => (weight / total) * width * height)
  let [x, y, w, h] = [0, 0, width, height]
  let from = 0
  const worst = (row: number[], side: number) => {
    const sum = row.reduce((a, b) => a + b, 0)
    return Math.max((side * side * Math.max(...row)) / (sum * sum), (sum * sum) / (side * side * Math.max(Math.min(...row), 1e-9)))
  }
  while (from < areas.length) {
    const side = Math.min(w, h)
    let to = from + 1
    while (to < areas.length && worst(areas.slice(from, to + 1), side) <= worst(areas.slice(from, to), side)) to += 1
    const row = areas.slice(from, to)
    const sum = row.reduce((a, b) => a + b, 0)
    const thick = side > 0 ? sum / side : 0
    let along = 0
    row.forEach((area, at) => {
      const length = thick > 0 ? area / thick : 0
      tiles.push(w >= h ? { index: from + at, x, y: y + along, w: thick, h: length } : { index: from + at, x: x + along, y, w: length, h: thick })
      along += length
    })
    if (w >= h) [x, w] = [x + thick, w - thick]
    else [y, h] = [y + thick, h - thick]
    from = to
  }
  return tiles
}
