// Numbers and times as the commands print them: powers of 1024 for sizes, powers of 1000 for rates, `2.39x`.

const SIZES = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB']
const RATES = ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s']
const NOTHING = '–'

/** Three significant digits, without an exponent. */
export function digits(value: number): string {
  const size = Math.abs(value)
  if (size === 0) return '0'
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2)
}

function scaled(value: number, base: number, units: string[]): string {
  let power = 0
  let size = Math.abs(value)
  while (size >= base * 0.9995 && power + 1 < units.length) {
    size /= base
    power += 1
  }
  const number = power === 0 || Number.isInteger(size) ? String(Math.round(size)) : digits(size)
  return `${value < 0 ? '-' : ''}${number} ${units[power]}`
}

export const size = (bytes: number | null | undefined) => (bytes == null ? NOTHING : scaled(bytes, 1024, SIZES))
export const rate = (bytes: number | null | undefined) => (bytes == null ? NOTHING : scaled(bytes, 1000, RATES))
export const count = (value: number) => value.toLocaleString('en')
export const percent = (value: number) => `${digits(value)} %`

export function ratio(logical: number, stored: number): string {
  return stored > 0 && logical > 0 ? `${(logical / stored).toFixed(2)}x` : NOTHING
}

/** What compression saves, in percent; less than nothing is nothing. */
export function saving(logical: number, stored: number): number {
  return logical > 0 ? Math.max(0, 100 * (1 - stored / logical)) : 0
}

export const saves = (logical: number, stored: number) => `saves ${Math.floor(saving(logical, stored) + 0.5)} %`

export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return NOTHING
  if (seconds < 1) return seconds <= 0 ? '0 s' : '< 1 s'
  if (seconds < 100) return `${Math.round(seconds)} s`
  if (seconds < 180 * 60) return `${Math.round(seconds / 60)} min`
  if (seconds < 72 * 3600) return `${Math.round(seconds / 3600)} h`
  return `${Math.round(seconds / 86400)} days`
}

export function latency(ns: number | null | undefined): string {
  if (ns == null) return NOTHING
  if (ns < 1e3) return `${Math.round(ns)} ns`
  if (ns < 1e6) return `${digits(ns / 1e3)} us`
  return ns < 1e9 ? `${digits(ns / 1e6)} ms` : `${digits(ns / 1e9)} s`
}

/** The bucket in which this part of all counts is reached; -1: all are 0. */
export function quantileBucket(counts: number[], part: number): number {
  const wanted = Math.ceil(counts.reduce((sum, count) => sum + count, 0) * part)
  let passed = 0
  return wanted ? counts.findIndex((count) => (passed += count) >= wanted) : -1
}

export function energy(joules: number): string {
  if (joules < 1000) return `${digits(joules)} J`
  return joules < 1e6 ? `${digits(joules / 1e3)} kJ` : `${digits(joules / 1e6)} MJ`
}

/** How long ago, for reading; `when` has the exact time. */
export function ago(unix_s: number | null | undefined, now = Date.now() / 1000): string {
  if (!unix_s) return 'never'
  const passed = now - unix_s
  if (passed < 2) return passed < -60 ? when(unix_s) : 'just now'
  return passed > 90 * 60 && passed < 3 * 3600 ? `${Math.round(passed / 3600)} h ago` : `${duration(passed)} ago`
}

const two = (value: number) => String(value).padStart(2, '0')

export function clock(unix_s: number, seconds = true): string {
  const at = new Date(unix_s * 1000)
  return `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ''}`
}

export function day(unix_s: number): string {
  const at = new Date(unix_s * 1000)
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`
}

export const when = (unix_s: number) => `${day(unix_s)} ${clock(unix_s)}`

const AMOUNTS: Record<string, (value: number) => string> = {
  bytes: size, 'bytes/s': rate, ns: latency, count: digits, cores: (value) => `${value > 0 && value < 0.005 ? '< 0.01' : digits(value)} cores`,
}

/** A value of a dataset, by its unit. */
export const amount = (value: number | null | undefined, unit: string) => (value == null ? NOTHING : (AMOUNTS[unit]?.(value) ?? `${digits(value)}${unit}`))

/** Bytes of a size as the commands take it: 4096, 64K, 10G, 1.5TiB, 20GB. None: it is no size. */
export function parseSize(text: string): number | null {
  const found = /^(\d+(?:\.\d*)?|\.\d+)\s*(?:([kmgtpe])(ib|b)?|b)?$/i.exec(text.trim())
  if (!found?.[1]) return null
  const power = found[2] ? 'kmgtpe'.indexOf(found[2].toLowerCase()) + 1 : 0
  const bytes = Number(found[1]) * (found[3]?.toLowerCase() === 'b' ? 1000 : 1024) ** power
  return Number.isFinite(bytes) ? Math.floor(bytes) : null
}

export const leaf = (name: string) => name.slice(name.lastIndexOf('/') + 1)
