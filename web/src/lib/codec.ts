// A codec has one colour in the whole page: teal by strength for the fast families, ochre for gzip and bzip2, grey for raw.
// Each colour is a custom property of app.css, with another value in the dark.

const FIXED: Record<string, string> = {
  raw: '--c-raw', off: '--c-raw', zero: '--c-zle', zle: '--c-zle', lzjb: '--c-lzjb', lzo: '--c-lzo', lz4: '--c-lz4', auto: '--c-auto',
}
const LEVELS: [RegExp, (level: number) => string][] = [
  [/^zstd-fast/, () => '--c-zf'],
  [/^zstd-(\d+)/, (level) => (level <= 2 ? '--c-z1' : level <= 5 ? '--c-z3' : level <= 12 ? '--c-z9' : '--c-z19')],
  [/^lz4hc/, () => '--c-lz4hc'],
  [/^gzip-(\d+)/, (level) => (level <= 7 ? '--c-gz6' : '--c-gz9')],
  [/^bzip2/, () => '--c-bz'],
]
const OTHERS = 8

/** Name of the colour of a codec, if it is one. */
function property(codec: string): string | null {
  const fixed = FIXED[codec.split(',')[0] ?? '']
  if (fixed) return fixed
  for (const [pattern, name] of LEVELS) {
    const found = pattern.exec(codec)
    if (found) return name(Number(found[1] ?? 0))
  }
  return null
}

/** The colour of a codec. */
export const codecColour = (codec: string) => `var(${property(codec) ?? '--c-raw'})`

/** Colours for the keys of a breakdown: codecs have their own, others the next of a row. */
export function colours(keys: string[], by: string | null): string[] {
  let next = 0
  return keys.map((key) => {
    const own = by === 'codec' ? property(key) : null
    return own ?? `--k-${next++ % OTHERS}`
  })
}

/** Properties that a choice of the drop-down sets: a codec, or a mode of `auto`. */
export function changesOf(setting: string): Record<string, string> {
  const mode = /^auto, (\w+)$/.exec(setting)?.[1]
  return mode ? { compression: 'auto', mode } : { compression: setting }
}

/** The setting as estimates name it. */
export const settingOf = (compression: string, mode: string) => (compression === 'auto' ? `auto, ${mode}` : compression)
