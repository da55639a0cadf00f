// The event stream: one for all tabs of a browser, because a browser opens six connections to a host at most. The tab
// that holds the lock has the stream and passes frames on; a tab that is hidden for a minute gives the lock up.
//
// States of a tab: waiting for the lock -> leader (stream open, or trying again) -> released. Followers only listen.

const LOCK = 'shale-events'
const HIDDEN_MS = 60_000
/** The server sends figures each second: that many without one, and the connection is taken for dead. */
const SILENT_MS = 8_000
const RETRY_MS = [500, 1_000, 2_000, 4_000]
/** So many objects have live figures in one stream. */
const OBJECTS_MAX = 200

export type Link = 'connecting' | 'live' | 'lost'
type Message =
  | { t: 'frame'; name: string; data: unknown; id: string }
  | { t: 'link'; link: Link }
  | { t: 'want'; tab: string; ids: number[] }
  | { t: 'ask' }

export interface Listener {
  frame(name: string, data: unknown, id: string): void
  link(link: Link): void
}

export class Stream {
  private readonly channel = new BroadcastChannel(LOCK)
  private readonly tab = Math.random().toString(36).slice(2)
  private readonly wants = new Map<string, number[]>()
  private source: EventSource | null = null
  private release: (() => void) | null = null
  private waiting: AbortController | null = null
  private asked = ''
  private hidden = 0
  private retry = 0
  private tries = 0
  private silent = 0
  private reopening = 0
  private ended = false

  constructor(private readonly listener: Listener) {
    this.channel.onmessage = (event: MessageEvent<Message>) => this.receive(event.data)
    document.addEventListener('visibilitychange', this.visibility)
    window.addEventListener('pagehide', this.end)
    this.elect()
    this.watch()
  }

  /** The objects whose figures this tab shows. */
  want(ids: number[]) {
    this.wants.set(this.tab, ids)
    this.post({ t: 'want', tab: this.tab, ids })
    this.reopen()
  }

  readonly end = () => {
    this.post({ t: 'want', tab: this.tab, ids: [] })
    this.ended = true
    document.removeEventListener('visibilitychange', this.visibility)
    window.removeEventListener('pagehide', this.end)
    this.resign()
    clearTimeout(this.silent)
    this.channel.close()
  }

  private post(message: Message) {
    if (!this.ended) this.channel.postMessage(message)
  }

  private receive(message: Message) {
    if (message.t === 'frame') this.deliver(message.name, message.data, message.id)
    else if (message.t === 'link') this.listener.link(message.link)
    else if (message.t === 'ask') this.post({ t: 'want', tab: this.tab, ids: this.wants.get(this.tab) ?? [] })
    else {
      // A tab that closes wants nothing.
      if (message.ids.length) this.wants.set(message.tab, message.ids)
      else this.wants.delete(message.tab)
      this.reopen()
    }
  }

  private deliver(name: string, data: unknown, id: string) {
    this.watch()
    this.listener.frame(name, data, id)
  }

  /** Reports a silence, in a leader and in a follower whose leader is gone without a word. */
  private watch() {
    clearTimeout(this.silent)
    this.silent = window.setTimeout(() => {
      if (document.hidden || this.ended) return
      this.listener.link('lost')
      if (this.release) this.again()
      else this.watch()
    }, SILENT_MS)
  }

  private readonly visibility = () => {
    clearTimeout(this.hidden)
    if (document.hidden) this.hidden = window.setTimeout(() => this.resign(), HIDDEN_MS)
    else if (!this.release && !this.waiting) {
      this.elect()
      this.watch()
    }
  }

  private elect() {
    if (!navigator.locks) {
      // Not a secure context: each tab has a stream of its own.
      this.release = () => {}
      this.open()
      return
    }
    const waiting = new AbortController()
    this.waiting = waiting
    navigator.locks
      .request(LOCK, { signal: waiting.signal }, () => {
        this.waiting = null
        return new Promise<void>((resolve) => {
          this.release = resolve
          this.post({ t: 'ask' })
          this.open()
        })
      })
      .catch(() => {})
  }

  private resign() {
    clearTimeout(this.retry)
    clearTimeout(this.reopening)
    this.source?.close()
    this.source = null
    this.waiting?.abort()
    this.waiting = null
    this.release?.()
    this.release = null
  }

  private reopen() {
    if (!this.source || this.asked === this.union()) return
    clearTimeout(this.reopening)
    this.reopening = window.setTimeout(() => this.open(), 250)
  }

  private union = () => [...new Set([...this.wants.values()].flat())].slice(0, OBJECTS_MAX).sort((a, b) => a - b).join(',')

  private open() {
    if (this.ended || !this.release) return
    this.source?.close()
    this.asked = this.union()
    const query = new URLSearchParams({ topics: 'figures,jobs,health,objects' })
    if (this.asked) query.set('objects', this.asked)
    const source = new EventSource(`/api/v1/events?${query}`)
    this.source = source
    for (const name of ['figures', 'jobs', 'health', 'objects', 'reset']) {
      source.addEventListener(name, (event: MessageEvent<string>) => {
        this.tries = 0
        const data: unknown = event.data ? JSON.parse(event.data) : null
        this.deliver(name, data, event.lastEventId)
        this.post({ t: 'frame', name, data, id: event.lastEventId })
      })
    }
    source.onopen = () => this.tell('live')
    // The browser's own attempts do not tell a refusal from a server that is away; ours ask.
    source.onerror = () => this.again()
  }

  private again() {
    this.source?.close()
    this.tell('lost')
    clearTimeout(this.retry)
    this.retry = window.setTimeout(() => this.open(), RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)])
  }

  private tell(link: Link) {
    this.listener.link(link)
    this.post({ t: 'link', link })
  }
}
