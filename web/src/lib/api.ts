// The client of the REST interface: one function a path that the page uses. Owns nothing; `onLost` and `onLoggedOut` are
// called when the server does not answer and when it does not know the session any more.
import type * as T from './types'

const BASE = '/api/v1'
/** Longest wait for an answer; a job or an event stream says what takes longer. */
const TIMEOUT_MS = 20_000

/** An answer that is not a success, with the server's words. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly kind: string,
    message: string,
    readonly blockers: string[] = [],
    readonly retryAfterS: number | null = null,
  ) {
    super(message)
  }
}

export const hooks = {
  onLost: () => {},
  onFound: () => {},
  onLoggedOut: () => {},
  nameOf: (id: number): string => String(id),
  idOf: (_name: string): number | null => null,
}

type Query = Record<string, string | number | boolean | undefined | string[]>

interface Options {
  query?: Query
  body?: unknown
  etag?: string
  signal?: AbortSignal
}

export interface Tagged<D> {
  document: D
  etag: string
}

export function address(path: string, query: Query = {}): string {
  const parts = new URLSearchParams()
  for (const [key, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== false) parts.append(key, String(one))
    }
  }
  const text = parts.toString()
  return BASE + path + (text ? `?${text}` : '')
}

async function send(method: string, path: string, options: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: 'application/json' }
  if (options.body !== undefined) headers['Content-Type'] = method === 'PATCH' ? 'application/merge-patch+json' : 'application/json'
  if (options.etag) headers['If-Match'] = options.etag
  const limit = AbortSignal.timeout(TIMEOUT_MS)
  let response: Response
  try {
    response = await fetch(address(path, options.query), {
      method,
      headers,
      body: options.body === undefined ? null : JSON.stringify(options.body),
      signal: options.signal ? AbortSignal.any([options.signal, limit]) : limit,
      credentials: 'same-origin',
    })
  } catch (error) {
    if (options.signal?.aborted) throw error
    hooks.onLost()
    throw new Problem(0, 'lost', 'the server is not responding')
  }
  hooks.onFound()
  if (response.ok) return response
  let document: Record<string, unknown> = {}
  try {
    document = await response.json()
  } catch {
    // A proxy's own page: the status says what there is to say.
  }
  if (response.status === 401 && path !== '/session') hooks.onLoggedOut()
  throw new Problem(
    response.status,
    String(document.kind ?? response.status),
    String(document.detail ?? document.title ?? `the server answered with status ${response.status}`),
    Array.isArray(document.blockers) ? document.blockers.map(String) : [],
    Number(response.headers.get('Retry-After')) || null,
  )
}

async function json<D>(method: string, path: string, options?: Options): Promise<D> {
  const response = await send(method, path, options)
  return (response.status === 204 ? null : await response.json()) as D
}

async function tagged<D>(method: string, path: string, options?: Options): Promise<Tagged<D>> {
  const response = await send(method, path, options)
  return { document: (await response.json()) as D, etag: response.headers.get('ETag') ?? '' }
}

const enc = encodeURIComponent
const PAGE_LIMIT = 1000
/** Entries of a directory that are shown: more than anybody scrolls through. */
const ENTRIES_MAX = 10_000
// Objects, snapshots among them, have permanent numbers, which a rename does not change.
const object = (id: number) => `/objects/${id}`
const file = (id: number, path: string) => `${object(id)}/files/${path.split('/').map(enc).join('/')}`

/** The folder or share above an object; null: the pool. */
function above(name: string): number | null {
  for (let at = name.lastIndexOf('/'); at > 0; at = name.lastIndexOf('/', at - 1)) {
    const id = hooks.idOf(name.slice(0, at))
    if (id !== null) return id
  }
  return null
}

const propertiesOf = (id: number | null) => (id === null ? '/pool/properties' : `${object(id)}/properties`)
const properties = async (id: number | null) => sourced(id, await tagged<T.Properties>('GET', propertiesOf(id)))

/** Adds to each property whether it is set on the object itself, and what it would inherit. */
async function sourced(id: number | null, { document, etag }: Tagged<T.Properties>): Promise<Tagged<T.Properties>> {
  const name = id === null ? null : hooks.nameOf(id)
  const isOwn = (one: T.Property) => (name === null ? one.source === 'pool' : !['default', 'pool'].includes(one.source) && (one.folder === null || one.folder === name))
  const ofFolder = (one: T.Property): T.Property => ({ ...one, source_id: one.folder === null ? null : hooks.idOf(one.folder) })
  const owner = name === null ? null : above(name)
  const up = name !== null && document.properties.some(isOwn) ? (await tagged<T.Properties>('GET', propertiesOf(owner))).document.properties : []
  const inherited = new Map(up.map((one) => [one.key, one.folder === null && owner !== null && !['default', 'pool'].includes(one.source) ? { ...one, folder: hooks.nameOf(owner) } : one]))
  const list = document.properties.map((one) => {
    const found = isOwn(one) ? inherited.get(one.key) : undefined
    return { ...ofFolder(one), here: isOwn(one), ...(found ? { inherited: ofFolder(found) } : {}) }
  })
  return { document: { ...document, properties: list }, etag }
}

/** A change of an object as it is now; refused if it changes in between. */
async function guarded(id: number, method: string, rest: string, options: Options): Promise<null> {
  const { etag } = await tagged<T.ShaleObject>('GET', object(id))
  return json<null>(method, object(id) + rest, { ...options, etag })
}

const wishOf = ({ kind, object, ...more }: { kind: string; object?: number; mode?: string; path?: string }) =>
  object === undefined ? { kind } : { kind, volume: hooks.nameOf(object), ...more }

/** Requests of the page say `object 17`: its name in quotes, where there still is one. */
const named = (text: string) => text.replace(/\bobject (\d+)\b/g, (all, id: string) => (hooks.nameOf(Number(id)) === id ? all : `'${hooks.nameOf(Number(id))}'`))

export const api = {
  session: () => json<T.Session>('GET', '/session'),
  logIn: (body: { user: string; password: string } | { key: string }) => json<T.Session>('POST', '/session', { body }),
  logOut: () => json<null>('DELETE', '/session'),
  version: () => json<{ version: string }>('GET', '/version'),

  status: () => json<T.Status>('GET', '/pool'),
  acknowledge: () => json<null>('POST', '/pool/acknowledgement', { body: {} }),
  resizePool: (capacity_bytes: number) => json<unknown>('PUT', '/pool/capacity', { body: { capacity_bytes } }),

  objects: async () => {
    const found: T.ShaleObject[] = []
    let cursor: string | null | undefined
    do {
      const page: { objects: T.ShaleObject[]; next: string | null } = await json('GET', '/objects', { query: { limit: PAGE_LIMIT, cursor: cursor ?? undefined } })
      found.push(...page.objects)
      cursor = page.next
    } while (cursor)
    return found
  },
  /** Bytes that only snapshots hold: the server reads the map of the object for it. */
  held: async (id: number) => (await json<T.ShaleObject>('GET', object(id), { query: { usage: true } })).snapshot_stored_bytes ?? null,
  create: (kind: T.Kind, name: string, more: { size_bytes?: number; properties: Record<string, string> }) =>
    json<{ id: number; notes: string[] }>('POST', `/${kind}s`, { body: { [kind]: name, ...more } }),
  rename: (id: number, name: string) => guarded(id, 'PUT', '/name', { body: { name } }),
  resize: (id: number, size_bytes: number, shrink: boolean) => guarded(id, 'PUT', '/size', { body: { size_bytes, shrink } }),
  promote: (id: number) => json<null>('POST', `${object(id)}/promote`, { body: {} }),
  destroy: (id: number, how: { recursive: boolean; force: boolean }) => guarded(id, 'DELETE', '', { query: how }),

  properties,
  setProperties: async (id: number | null, changes: Record<string, string | null>, etag: string) =>
    sourced(id, await tagged<T.Properties>('PATCH', propertiesOf(id), { body: changes, etag })),

  snapshots: (id: number) => json<T.Snapshot[]>('GET', `${object(id)}/snapshots`),
  takeSnapshot: (id: number, name: string) => json<null>('POST', `${object(id)}/snapshots`, { body: { name } }),
  takeSnapshots: (folder: number, name: string) => json<string[]>('POST', `/folders/${folder}/snapshots`, { body: { name } }),
  destroySnapshot: (snapshot: number) => json<null>('DELETE', object(snapshot)),
  hold: (snapshot: number, tag: string) => json<null>('PUT', `${object(snapshot)}/holds/${enc(tag)}`, { body: {} }),
  release: (snapshot: number, tag: string) => json<null>('DELETE', `${object(snapshot)}/holds/${enc(tag)}`),
  clone: (snapshot: number, volume: string) => json<{ id: number }>('POST', `${object(snapshot)}/clones`, { body: { volume } }),
  rollback: (snapshot: number, how: { recursive: boolean; force: boolean }) => json<null>('POST', '/rollback', { body: { snapshots: [snapshot], ...how } }),
  diff: (id: number, from: number) => json<T.Diff>('GET', `${object(id)}/diff`, { query: { from } }),

  files: async (id: number, path: string, at?: string) => {
    const entries: T.Entry[] = []
    let cursor: string | undefined
    do {
      const page = await json<{ entries: T.Entry[]; next: string | null }>('GET', file(id, path), { query: { at, cursor } })
      entries.push(...page.entries)
      cursor = page.next ?? undefined
    } while (cursor && entries.length < ENTRIES_MAX)
    return { entries, more: !!cursor }
  },
  fileAddress: (id: number, path: string, at?: string) => address(file(id, path), { at }),
  restore: (id: number, path: string, body: { at: string; to?: string; replace?: boolean }) => json<T.Job>('POST', `${file(id, path)}/restore`, { body }),

  usage: (id: number, path = '') => json<T.Usage>('GET', `${object(id)}/usage`, { query: { path } }),
  explainMap: (id: number, cells: number) => json<T.ExplainMap>('GET', `${object(id)}/explain-map`, { query: { cells } }),
  explain: (id: number, offset: number) => json<T.Detail>('GET', `${object(id)}/explain/${offset}`),
  startEstimate: (id: number, choices: string[]) => json<T.Job>('POST', `${object(id)}/estimates`, { body: { choices } }),
  estimate: (id: number, signal?: AbortSignal) => json<T.Estimate>('GET', `${object(id)}/estimates`, signal ? { signal } : {}),

  exports: (check: boolean) => json<T.Exports>('GET', '/exports', { query: { check } }),
  jobs: () => json<T.Job[]>('GET', '/jobs'),
  startJob: (wish: Parameters<typeof wishOf>[0]) => json<T.Job>('POST', '/jobs', { body: { wish: wishOf(wish) } }),
  pauseJob: (id: number) => json<T.Job>('POST', `/jobs/${id}/pause`, { body: {} }),
  resumeJob: (id: number) => json<T.Job>('POST', `/jobs/${id}/resume`, { body: {} }),
  cancelJob: (id: number) => json<T.Job>('DELETE', `/jobs/${id}`),

  datasets: async (): Promise<T.Datasets> => {
    const { datasets, store } = await json<Recorded>('GET', '/analytics/datasets')
    const known = datasets.map((one): T.Dataset => ({
      dataset: one.dataset,
      title: one.text,
      kind: one.breakdowns.includes('bucket') ? 'histogram' : one.shape === 'gauge' ? 'gauge' : 'rate',
      breakdowns: one.breakdowns.filter((by) => by !== 'bucket'),
    }))
    return { datasets: known, oldest: store.oldest_unix_s }
  },
  series: async (wish: SeriesWish): Promise<T.Series> => {
    const found = await json<RecordedSeries>('GET', '/analytics/series', { query: seriesQuery(wish) })
    const isGauge = found.shape === 'gauge'
    // Sums become amounts a second; CPU time a second is cores.
    const scale = found.unit === 'ns' && !isGauge ? 1e-9 : 1
    const unit = isGauge ? found.unit : { bytes: 'bytes/s', count: '/s', ns: 'cores' }[found.unit]
    const value = (amount: number, covered: number) => (covered ? (isGauge ? amount : (amount * scale) / covered) : null)
    return {
      by: found.by,
      unit: unit ?? found.unit,
      from: found.from_unix_s,
      step: found.step_s,
      series: found.series.map(({ name, values }) => ({ key: name, values: found.covered_s.map((covered, at) => value(values[at] ?? 0, covered)) })),
      left_out: found.left_out_series + found.folded_objects,
    }
  },
  heatmap: async (wish: SeriesWish): Promise<T.Heatmap> => {
    const found = await json<RecordedHeatmap>('GET', '/analytics/heatmap', { query: seriesQuery({ ...wish, by: null }) })
    const columns = found.covered_s.map((_, at) => found.counts.map((row) => row[at] ?? 0))
    return { from: found.from_unix_s, step: found.step_s, bucket_ends_ns: found.bucket_ends_ns, columns }
  },
  /** Without those of estimates, which change nothing: the page starts and cancels them whenever a list is opened. */
  marks: async (from: number, to: number) => {
    const marks = await json<T.Mark[]>('GET', '/analytics/marks', { query: { from_unix_s: Math.floor(from), to_unix_s: Math.ceil(to) } })
    return marks.filter(({ text }) => !/^(estimate of |cancel job )/.test(text)).map((mark) => ({ ...mark, text: named(mark.text) }))
  },
  worksheets: () => json<{ name: string; body: string }[]>('GET', '/worksheets'),
  saveWorksheet: (name: string, sheet: T.Worksheet) => json<null>('PUT', `/worksheets/${enc(name)}`, { body: { body: JSON.stringify(sheet) } }),
  dropWorksheet: (name: string) => json<null>('DELETE', `/worksheets/${enc(name)}`),

  users: () => json<{ users: T.User[] }>('GET', '/users'),
  addUser: (body: { name: string; role: T.Role; password: string }) => json<null>('POST', '/users', { body }),
  dropUser: (name: string) => json<null>('DELETE', `/users/${enc(name)}`),
  tokens: () => json<{ tokens: T.Token[] }>('GET', '/tokens'),
  addToken: (body: { name: string; role: T.Role; expires_unix_s?: number }) => json<{ token: string }>('POST', '/tokens', { body }),
  dropToken: (name: string) => json<null>('DELETE', `/tokens/${enc(name)}`),
  audit: async (limit: number) => {
    const { entries } = await json<{ entries: T.AuditEntry[] }>('GET', '/audit', { query: { limit } })
    return { entries: entries.map((entry) => ({ ...entry, about: named(entry.about) })) }
  },
}

export interface SeriesWish {
  dataset: string
  by?: string | null
  /** Values of breakdowns; several of one: any of them. */
  only?: Record<string, string | string[]>
  from: number
  to: number
  points: number
}

function seriesQuery(wish: SeriesWish): Query {
  const only = Object.entries(wish.only ?? {}).flatMap(([key, values]) => [values].flat().map((value) => `${key}=${value}`))
  const span = { from_unix_s: Math.floor(wish.from), to_unix_s: Math.ceil(wish.to) }
  return { dataset: wish.dataset, by: wish.by ?? undefined, only, ...span, step_s: Math.max(1, Math.ceil((wish.to - wish.from) / wish.points)) }
}

// History as the server has it: sums of each step, with the seconds of it that were sampled.
interface Recorded {
  datasets: { dataset: string; unit: string; shape: string; breakdowns: string[]; text: string }[]
  store: { oldest_unix_s: (number | null)[] }
}

type RecordedSteps = { from_unix_s: number; step_s: number; covered_s: number[] }

interface RecordedSeries extends RecordedSteps {
  unit: string
  shape: string
  by: string | null
  series: { name: string; values: number[] }[]
  left_out_series: number
  folded_objects: number
}

type RecordedHeatmap = RecordedSteps & { bucket_ends_ns: number[]; counts: number[][] }
