// The route, behind `#`: #/, #/o/ID/TAB, #/analytics, #/jobs, #/health, #/settings/TAB. Owns the address bar.

interface Route {
  parts: string[]
  query: URLSearchParams
}

function parse(): Route {
  const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?')
  return { parts: path.split('/').filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) }
}

class Router {
  route = $state.raw<Route>(parse())

  constructor() {
    window.addEventListener('hashchange', () => (this.route = parse()))
  }

  readonly view = $derived(this.route.parts[0] ?? '')
  readonly objectId = $derived(this.view === 'o' ? Number(this.route.parts[1]) : null)
  readonly tab = $derived((this.view === 'o' ? this.route.parts[2] : this.route.parts[1]) ?? '')

  go(path: string) {
    location.hash = path
  }

  /** Writes a part of the view's state to the address, without an entry in the history. */
  note(query: Record<string, string | null>) {
    const parts = new URLSearchParams(this.route.query)
    for (const [key, value] of Object.entries(query)) {
      if (value === null || value === '') parts.delete(key)
      else parts.set(key, value)
    }
    const path = this.route.parts.map(encodeURIComponent).join('/')
    const text = parts.toString()
    history.replaceState(null, '', `#/${path}${text ? `?${text}` : ''}`)
    this.route = parse()
  }
}

export const router = new Router()
export const objectLink = (id: number, tab = '') => `#/o/${id}${tab ? `/${tab}` : ''}`
