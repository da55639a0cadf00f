// What all views share: who is logged in, the connection, the pool's figures, objects and jobs. Owns the event stream.
// Views read it and call its methods; only frames of the stream and answers of the server change it.
import { untrack } from 'svelte'
import { api, hooks, Problem, type Tagged } from './api'
import { Stream, type Link } from './stream'
import type { Figures, Health, Job, Properties, Property, Role, Session, ShaleObject, Status } from './types'

/** Seconds of live figures that are kept for the small graphs. */
const HISTORY_S = 120
/** A longer pause between figures is a gap: the page was hidden, or its computer slept. */
const GAP_S = 10
const OBJECTS_REFRESH_MS = 30_000
const STATUS_REFRESH_MS = 10_000
/** Ended jobs that are kept: as many as the server keeps. */
const ENDED_MAX = 200
const RANK: Record<Role, number> = { read: 0, operate: 1, admin: 2 }

export interface Notice {
  id: number
  text: string
  bad: boolean
  action?: { text: string; run: () => void } | undefined
}

/** Something that is loaded: nothing yet, a value, or the reason why there is none. */
export class Resource<T> {
  value = $state.raw<T | null>(null)
  error = $state.raw<Problem | null>(null)
  busy = $state(false)
  private turn = 0

  /** Loads it; an answer that comes after that of a later call is dropped. */
  async load(get: () => Promise<T>): Promise<void> {
    const turn = ++this.turn
    this.busy = true
    try {
      const value = await get()
      if (turn !== this.turn) return
      this.value = value
      this.error = null
    } catch (error) {
      if (turn !== this.turn || (error instanceof DOMException && error.name === 'AbortError')) return
      this.error = problemOf(error)
    } finally {
      if (turn === this.turn) this.busy = false
    }
  }

  clear() {
    this.turn += 1
    this.value = null
    this.error = null
    this.busy = false
  }
}

/** Runs now and whenever one of the things read by `on` changes; what `run` reads does not count. */
export function follow(on: () => unknown, run: () => unknown) {
  $effect(() => {
    on()
    untrack(run)
  })
}

/** The properties in force of an object, or of the pool, as several views read and change them. */
export class PropertySet {
  readonly tagged = new Resource<Tagged<Properties>>()
  fault = $state<string | null>(null)
  readonly list = $derived(this.tagged.value?.document.properties ?? [])

  constructor(private readonly id: number | null) {
    follow(() => app.generation, this.load)
  }

  readonly load = () => this.tagged.load(() => api.properties(this.id))
  readonly find = (key: string): Property | undefined => this.list.find((one) => one.key === key)

  /** Sets or inherits; false: refused, and `fault` says why. */
  async set(changes: Record<string, string | null>): Promise<boolean> {
    this.fault = null
    try {
      if (!this.tagged.value) return false
      this.tagged.value = await api.setProperties(this.id, changes, this.tagged.value.etag)
      for (const note of this.tagged.value.document.notes) app.say(note)
      return true
    } catch (error) {
      const { status, message } = problemOf(error)
      this.fault = status === 412 ? 'The properties were changed in the meantime, and were reloaded. Check them, then apply your change again.' : message
      await this.load()
      return false
    }
  }
}

export function problemOf(error: unknown): Problem {
  return error instanceof Problem ? error : new Problem(0, 'page', error instanceof Error ? error.message : String(error))
}

class App {
  session = $state.raw<Session | null | undefined>(undefined)
  link = $state<Link>('connecting')
  status = $state.raw<Status | null>(null)
  health = $state.raw<Health | null>(null)
  figures = $state.raw<Figures | null>(null)
  history = $state.raw<Figures[]>([])
  jobs = $state.raw<Job[]>([])
  objects = $state.raw<ShaleObject[]>([])
  objectsError = $state.raw<Problem | null>(null)
  loaded = $state(false)
  notices = $state.raw<Notice[]>([])
  narrow = $state(false)
  dark = $state(false)
  /** Pixels of the page's letters: rows and graphs that are computed grow with it. */
  rem = $state(14)
  /** Raised when an object's properties, snapshots or figures may have changed. */
  generation = $state(0)
  /** Raised when `history` begins again. */
  histories = $state(0)

  readonly byId = $derived(new Map(this.objects.map((object) => [object.id, object])))
  readonly byName = $derived(new Map(this.objects.map((object) => [object.name, object])))
  readonly running = $derived(this.jobs.filter((job) => job.ended_unix_s === null && job.kind !== 'estimate'))

  private stream: Stream | null = null
  private wanted: number[] = []
  private timers: number[] = []
  private noticed = 0

  constructor() {
    hooks.onLost = () => {
      if (this.link === 'live') this.link = 'lost'
    }
    hooks.onLoggedOut = () => this.leave()
    hooks.nameOf = (id) => this.byId.get(id)?.name ?? String(id)
    hooks.idOf = (name) => this.byName.get(name)?.id ?? null
    const watch = (query: string, set: (matches: boolean) => void) => {
      const media = window.matchMedia(query)
      set(media.matches)
      media.addEventListener('change', () => set(media.matches))
    }
    const measure = () => (this.rem = parseFloat(getComputedStyle(document.documentElement).fontSize) || 14)
    measure()
    window.addEventListener('resize', measure)
    watch('(max-width: 46rem)', (matches) => (this.narrow = matches))
    watch('(prefers-color-scheme: dark)', (matches) => (this.dark = matches))
  }

  objectId(id: number | null): ShaleObject | null {
    return id === null ? null : (this.byId.get(id) ?? null)
  }

  can(role: Role): boolean {
    return !!this.session && RANK[this.session.role] >= RANK[role]
  }

  /** Why a control is off, or nothing. */
  why(role: Role): string | undefined {
    return this.can(role) ? undefined : `needs the role ${role}; yours is ${this.session?.role ?? 'none'}`
  }

  async begin() {
    try {
      this.enter(await api.session())
    } catch (error) {
      if (problemOf(error).status === 0) this.link = 'lost'
      this.session = null
    }
  }

  enter(session: Session) {
    this.session = session
    this.link = 'connecting'
    void this.refresh()
    this.stream = new Stream({ frame: (name, data) => this.frame(name, data), link: (link) => this.linked(link) })
    this.stream.want(this.wanted)
    const each = (ms: number, run: () => unknown) =>
      this.timers.push(window.setInterval(() => !document.hidden && this.link === 'live' && run(), ms))
    each(STATUS_REFRESH_MS, () => this.refreshStatus())
    each(OBJECTS_REFRESH_MS, () => this.refreshObjects())
  }

  /** The session has ended: back to the log-in, with nothing of the pool left in memory. */
  leave() {
    this.stream?.end()
    this.stream = null
    this.timers.forEach(clearInterval)
    this.timers = []
    this.session = null
    this.status = this.health = this.figures = null
    this.jobs = []
    this.objects = []
    this.history = []
    this.loaded = false
  }

  async logOut() {
    await api.logOut().catch(() => {})
    this.leave()
  }

  want(ids: number[]) {
    if (ids.join() === this.wanted.join()) return
    this.wanted = ids
    this.stream?.want(ids)
  }

  async refresh() {
    await Promise.all([this.refreshStatus(), this.refreshObjects(), this.refreshJobs()])
    this.loaded = true
    this.generation += 1
  }

  async refreshStatus() {
    await api.status().then((status) => (this.status = status)).catch(() => {})
  }

  async refreshJobs() {
    await api.jobs().then((jobs) => (this.jobs = jobs)).catch(() => {})
  }

  async refreshObjects() {
    try {
      const objects = await api.objects()
      objects.sort(byName)
      this.objects = objects
      this.objectsError = null
    } catch (error) {
      this.objectsError = problemOf(error)
    }
  }

  say(text: string, action?: Notice['action']) {
    this.notice({ text, bad: false, action })
  }

  complain(error: unknown) {
    const problem = problemOf(error)
    if (problem.status !== 401) this.notice({ text: problem.message, bad: true })
  }

  private notice(notice: Omit<Notice, 'id'>) {
    const id = ++this.noticed
    this.notices = [...this.notices.slice(-2), { ...notice, id }]
    // A fault, and what can be undone, stay until they are closed.
    if (!notice.bad && !notice.action) window.setTimeout(() => this.dismiss(id), 6_000)
  }

  dismiss(id: number) {
    this.notices = this.notices.filter((notice) => notice.id !== id)
  }

  private linked(link: Link) {
    const was = this.link
    this.link = link
    if (link === 'live' && was === 'lost') void this.refresh()
    // A refusal looks like a lost server to an event stream; the session tells.
    if (link === 'lost') void api.session().catch((error: unknown) => problemOf(error).status === 401 && this.leave())
  }

  private frame(name: string, data: unknown) {
    if (this.link !== 'live') this.linked('live')
    if (name === 'figures') this.tick(data as Figures)
    else if (name === 'health') this.health = healthOf(data as Health)
    else if (name === 'jobs') this.merge((data as { jobs: Job[] }).jobs)
    else if (name === 'reset') void this.refresh()
  }

  private tick(figures: Figures) {
    if (this.figures && this.figures.boot !== figures.boot) {
      this.forget()
      this.say('The server restarted; everything was reloaded.')
      void this.reload()
    } else if (this.figures && figures.unix_s - this.figures.unix_s > GAP_S) {
      // Changes of the meantime were not reported.
      this.forget()
      void this.refresh()
    }
    this.figures = figures
    this.history = [...this.history.slice(1 - HISTORY_S), figures]
  }

  private forget() {
    this.history = []
    this.histories += 1
  }

  /** Reads everything again, and the page itself if it is another one now. */
  private async reload() {
    const page = await fetch('/', { cache: 'no-store' }).then((answer) => answer.text()).catch(() => '')
    const script = document.querySelector<HTMLScriptElement>('script[type=module]')?.getAttribute('src')
    if (page && script && !page.includes(script)) location.reload()
    else await this.refresh()
  }

  private merge(changed: Job[]) {
    const ended = changed.filter((job) => job.ended_unix_s !== null && job.kind !== 'estimate' && this.jobs.some((old) => old.id === job.id && old.ended_unix_s === null))
    const fresh = new Map(changed.map((job) => [job.id, job]))
    const rest = this.jobs.map((job) => {
      const found = fresh.get(job.id)
      fresh.delete(job.id)
      return found ?? job
    })
    let kept = 0
    this.jobs = [...fresh.values(), ...rest].sort((a, b) => b.id - a.id).filter((job) => job.ended_unix_s === null || ++kept <= ENDED_MAX)
    for (const job of ended) {
      const what = `${job.kind}${job.target ? ` ${job.target}` : ''}`
      if (job.state === 'failed') this.complain(new Problem(500, 'job', `${what} failed: ${job.error?.message ?? 'no reason given'}`))
      else this.say(`${what}: ${job.state}`)
    }
    if (ended.length) void this.refreshObjects().then(() => (this.generation += 1))
  }
}

// A pool without a fault has a finding that says so.
const healthOf = ({ health, findings }: Health): Health => ({ health, findings: findings.filter((one) => one.kind !== 'ok') })

// By folder, not by character: `a/b` stands below `a` and before `a.c`.
function byName(a: ShaleObject, b: ShaleObject): number {
  const [left, right] = [a.name.replaceAll('/', '\0'), b.name.replaceAll('/', '\0')]
  return left < right ? -1 : left > right ? 1 : 0
}

export const app = new App()
