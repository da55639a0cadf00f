// Builds the page into crates/fe-http/assets: plain and brotli, names with a hash of their content, and assets.json,
// from which the server makes its table. The same sources give the same bytes.
import { svelte } from '@sveltejs/vite-plugin-svelte'
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { brotliCompressSync, constants } from 'node:zlib'
import { defineConfig, type Plugin } from 'vite'

// Elsewhere for a comparison with the committed files.
const OUT = process.env.SHALE_WEB_OUT ?? '../crates/fe-http/assets'
const TYPES: Record<string, string> = {
  html: 'text/html; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml',
}
// Smaller files gain less than the header that says so.
const BROTLI_BYTES_MIN = 512

function table(): Plugin {
  return {
    name: 'shale-assets',
    apply: 'build',
    closeBundle() {
      const names = readdirSync(OUT, { recursive: true, encoding: 'utf8' }).filter((name) => /\.\w+$/.test(name)).sort()
      const entries = names.map((file) => {
        const content = readFileSync(join(OUT, file))
        const type = TYPES[file.split('.').pop() ?? '']
        if (!type) throw new Error(`${file}: no media type is known for it`)
        const etag = createHash('sha256').update(content).digest('hex').slice(0, 16)
        const packed = brotliCompressSync(content, {
          params: { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: content.length },
        })
        const brotli = content.length >= BROTLI_BYTES_MIN ? `${file}.br` : null
        if (brotli) writeFileSync(join(OUT, brotli), packed)
        return { path: file === 'index.html' ? '/' : `/${file}`, file, brotli, type, etag, immutable: file !== 'index.html' }
      })
      writeFileSync(join(OUT, 'assets.json'), JSON.stringify(entries, null, 1) + '\n')
    },
  }
}

export default defineConfig({
  base: './',
  plugins: [svelte(), table()],
  build: {
    outDir: OUT,
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    rolldownOptions: { output: { entryFileNames: 'p/[hash].js', chunkFileNames: 'p/[hash].js', assetFileNames: 'p/[hash][extname]' } },
  },
  server: { proxy: { '/api': process.env.SHALE_API ?? 'http://127.0.0.1:8099' } },
})
