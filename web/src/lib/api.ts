// The client of the REST interface: one function a path that the page uses. Owns nothing; `onLost` and `onLoggedOut` are
// called when the server does not answer and when it does not know the session any more.
import type * as T from './types'

const BASE = '/api/v1'
/** Longest wait for an answer; a job or an event stream says what takes longer. */
const TIMEOUT_MS = 20_000
const PAGE_LIMIT = 1000

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

export const hooks = { onLost: () => {}, onFound: () => {}, onLoggedOut: () => {} }

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
    throw new Problem(0, 'lost', 'the server does not answer')
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
const object = (id: number) => `/objects/${id}`
const properties = (id: number | null) => (id === null ? '/pool/properties' : `${object(id)}/properties`)
const snapshot = (id: number, name: string) => `${object(id)}/snapshots/${enc(name)}`
const file = (id: number, path: string) => `${object(id)}/files/${path.split('/').map(enc).join('/')}`

/** All pages of a list, one after the other. */
async function all<D>(page: (cursor?: string) => Promise<{ items: D[]; next: string | null }>): Promise<D[]> {
  const found: D[] = []
  let cursor: string | undefined
  do {
    const { items, next } = await page(cursor)
    found.push(...items)
    cursor = next ?? undefined
  } while (cursor)
  return found
}

export const api = {
  session: () => json<T.Session>('GET', '/session'),
  logIn: (body: { user: string; password: string } | { key: string }) => json<T.Session>('POST', '/session', { body }),
  logOut: () => json<null>('DELETE', '/session'),
  version: () => json<{ version: string; boot: string; commit?: string }>('GET', '/version'),

  status: () => json<T.Status>('GET', '/pool'),
  health: () => json<T.Health>('GET', '/health'),
  acknowledge: () => json<null>('POST', '/pool/acknowledgement', { body: {} }),
  resizePool: (capacity_bytes: number) => json<T.Status | T.Job>('PUT', '/pool/capacity', { body: { capacity_bytes } }),

  objects: () =>
    all(async (cursor) => {
      const page = await json<{ objects: T.ShaleObject[]; next: string | null }>('GET', '/objects', { query: { limit: PAGE_LIMIT, cursor } })
      return { items: page.objects, next: page.next }
    }),
  object: (id: number) => json<T.ShaleObject>('GET', object(id)),
  create: (body: { name: string; kind: T.Kind; size_bytes?: number; properties?: Record<string, string> }) =>
    json<T.ShaleObject>('POST', '/objects', { body }),
  resize: async (id: number, size_bytes: number) => {
    const { etag } = await tagged<T.ShaleObject>('GET', object(id))
    return json<T.ShaleObject>('PATCH', object(id), { body: { size_bytes }, etag })
  },
  destroyPreview: (id: number) => json<T.Affected>('DELETE', object(id), { query: { preview: true } }),
  destroy: (id: number, how: { recursive: boolean; force: boolean }) => json<null>('DELETE', object(id), { query: how }),

  properties: (id: number | null) => tagged<T.Properties>('GET', properties(id)),
  setProperties: (id: number | null, changes: Record<string, string | null>, etag: string) =>
    tagged<T.Properties>('PATCH', properties(id), { body: changes, etag }),

  snapshots: (id: number) =>
    all(async (cursor) => {
      const page = await json<{ snapshots: T.Snapshot[]; next: string | null }>('GET', `${object(id)}/snapshots`, { query: { limit: PAGE_LIMIT, cursor } })
      return { items: page.snapshots, next: page.next }
    }),
  takeSnapshot: (id: number, name: string) => json<T.Snapshot>('POST', `${object(id)}/snapshots`, { body: { name } }),
  destroySnapshot: (id: number, name: string) => json<null>('DELETE', snapshot(id, name)),
  hold: (id: number, name: string, tag: string) => json<null>('PUT', `${snapshot(id, name)}/holds/${enc(tag)}`, { body: {} }),
  release: (id: number, name: string, tag: string) => json<null>('DELETE', `${snapshot(id, name)}/holds/${enc(tag)}`),
  clone: (id: number, name: string, to: string) => json<T.ShaleObject>('POST', `${snapshot(id, name)}/clone`, { body: { name: to } }),
  rollbackPreview: (id: number, name: string) => json<T.Affected>('POST', `${snapshot(id, name)}/rollback`, { body: {}, query: { preview: true } }),
  rollback: (id: number, name: string, how: { recursive: boolean; force: boolean }) =>
    json<null>('POST', `${snapshot(id, name)}/rollback`, { body: {}, query: how }),
  diff: (id: number, from: string, to: string | undefined) => json<T.Diff>('GET', `${object(id)}/diff`, { query: { from, to } }),

  files: (id: number, path: string, at?: string, signal?: AbortSignal) =>
    json<{ path: string; entries: T.Entry[]; next: string | null }>('GET', file(id, path), { query: { at }, ...(signal ? { signal } : {}) }),
  fileAddress: (id: number, path: string, at?: string) => address(file(id, path), { at }),
  restore: (id: number, path: string, body: { at: string; to?: string; replace?: boolean }) =>
    json<T.Job>('POST', `${file(id, path)}/restore`, { body }),

  usage: (id: number, path = '') => json<T.Usage>('GET', `${object(id)}/usage`, { query: { path } }),
  explainMap: (id: number, cells: number) => json<T.ExplainMap>('GET', `${object(id)}/explain-map`, { query: { cells } }),
  explain: (id: number, offset: number) => json<T.Detail>('GET', `${object(id)}/explain`, { query: { offset } }),
  startEstimate: (id: number, choices?: string[]) => json<T.Job>('POST', `${object(id)}/estimates`, { body: choices ? { choices } : {} }),
  estimate: (id: number, signal?: AbortSignal) => json<T.Estimate>('GET', `${object(id)}/estimates`, signal ? { signal } : {}),

  exports: (check: boolean) => json<T.Exports>('GET', '/exports', { query: { check } }),
  jobs: () => json<{ jobs: T.Job[] }>('GET', '/jobs'),
  startJob: (body: { kind: string; object?: number; mode?: string; path?: string }) => json<T.Job>('POST', '/jobs', { body }),
  setJob: (id: string, state: 'paused' | 'running') => json<T.Job>('PATCH', `/jobs/${enc(id)}`, { body: { state } }),
  cancelJob: (id: string) => json<T.Job>('DELETE', `/jobs/${enc(id)}`),

  datasets: () => json<{ datasets: T.Dataset[]; tiers: { step_s: number; from_unix_s: number }[] }>('GET', '/analytics/datasets'),
  series: (wish: SeriesWish, signal?: AbortSignal) => json<T.Series>('GET', '/analytics/series', { query: seriesQuery(wish), ...(signal ? { signal } : {}) }),
  heatmap: (wish: SeriesWish, signal?: AbortSignal) => json<T.Heatmap>('GET', '/analytics/heatmap', { query: seriesQuery(wish), ...(signal ? { signal } : {}) }),
  marks: (from: number, to: number) => json<{ marks: T.Mark[] }>('GET', '/analytics/marks', { query: { from, to } }),
  worksheets: () => json<{ worksheets: { name: string }[] }>('GET', '/worksheets'),
  worksheet: (name: string) => json<T.Worksheet>('GET', `/worksheets/${enc(name)}`),
  saveWorksheet: (name: string, body: T.Worksheet) => json<null>('PUT', `/worksheets/${enc(name)}`, { body }),
  dropWorksheet: (name: string) => json<null>('DELETE', `/worksheets/${enc(name)}`),

  users: () => json<{ users: T.User[] }>('GET', '/users'),
  addUser: (body: { name: string; role: T.Role; password: string }) => json<null>('POST', '/users', { body }),
  dropUser: (name: string) => json<null>('DELETE', `/users/${enc(name)}`),
  tokens: () => json<{ tokens: T.Token[] }>('GET', '/tokens'),
  addToken: (body: { name: string; role: T.Role; folder?: string; expires_unix_s?: number }) => json<T.Token & { token: string }>('POST', '/tokens', { body }),
  dropToken: (name: string) => json<null>('DELETE', `/tokens/${enc(name)}`),
  audit: () => json<{ entries: T.AuditEntry[]; next: string | null }>('GET', '/audit'),
}

export interface SeriesWish {
  dataset: string
  by?: string | null
  only?: Record<string, string>
  from: number
  to: number
  points: number
}

function seriesQuery(wish: SeriesWish): Query {
  const only = Object.entries(wish.only ?? {}).map(([key, value]) => `${key}=${value}`)
  return { dataset: wish.dataset, by: wish.by ?? undefined, only, from: Math.floor(wish.from), to: Math.ceil(wish.to), points: wish.points }
}
