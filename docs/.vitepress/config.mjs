// The site of docs/*.md, built by VitePress (scripts/docs). The pages are plain Markdown that GitHub shows as well: what
// the two treat differently is settled in this file, not in the pages.
import { renderMermaidSVG } from 'beautiful-mermaid'
import { existsSync, readFileSync, statSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const docs = fileURLToPath(new URL('..', import.meta.url))
const root = join(docs, '..')
const repository = 'https://github.com/cdc-relay/cdc-relay'

// sidebar reads groups and pages from docs/README.md, the only list of pages.
function sidebar() {
  const groups = []
  for (const line of readFileSync(join(docs, 'README.md'), 'utf8').split('\n')) {
    const heading = line.match(/^## (.*)/)
    const page = line.match(/^- \[(.*?)\]\((.*?)\.md\)/)
    if (heading) groups.push({ text: heading[1], items: [] })
    if (page) groups.at(-1).items.push({ text: page[1], link: `/${page[2]}` })
  }
  return groups
}

// slugify gives headings the anchors of GitHub, so that one link works in both.
function slugify(heading) {
  return heading.trim().toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, '').replaceAll(' ', '-')
}

// outsideLinks points links to files that are no pages of the site to GitHub. VitePress reports links to missing files.
function outsideLinks(md) {
  md.core.ruler.push('outside-links', ({ tokens, env }) => {
    for (const token of tokens.flatMap((block) => block.children ?? [])) {
      const href = token.type === 'link_open' ? token.attrGet('href') : ''
      if (!href || /^(#|[a-z]+:)/.test(href)) continue
      const [path, anchor] = href.split('#')
      const file = join(docs, dirname(env.relativePath), path)
      const suffix = anchor ? `#${anchor}` : ''
      if (relative(docs, file) === 'README.md') token.attrSet('href', `./${suffix}`)
      else if (existsSync(file) && (dirname(relative(docs, file)) !== '.' || !file.endsWith('.md'))) {
        const kind = statSync(file).isDirectory() ? 'tree' : 'blob'
        token.attrSet('href', `${repository}/${kind}/main/${relative(root, file)}${suffix}`)
      }
    }
  })
}

// diagrams draws Mermaid diagrams during the build, in the colors of the page: Mermaid itself is 1.6 MB of compressed
// script for each reader. The drawing must have all labels, because beautiful-mermaid ignores what it does not know.
function diagrams(md) {
  const fence = md.renderer.rules.fence
  md.renderer.rules.fence = (tokens, index, options, env, self) => {
    const { info, content } = tokens[index]
    if (info.trim() !== 'mermaid') return fence(tokens, index, options, env, self)
    const colors = { bg: 'var(--vp-c-bg)', fg: 'var(--vp-c-text-1)', muted: 'var(--vp-c-text-1)', line: 'var(--vp-c-text-3)' }
    // Its style sheet loads a font from another host.
    const drawing = renderMermaidSVG(content, { ...colors, font: 'system-ui', transparent: true }).replace(/@import url\(.*?\);/g, '')
    for (const label of content.matchAll(/["[(|]([\p{L}][^"[\]()|<>]*)/gu)) {
      if (!drawing.includes(md.utils.escapeHtml(label[1].trim()))) throw new Error(`${env.relativePath}: no "${label[1]}" in the diagram`)
    }
    return `<div class="diagram" v-html="${md.utils.escapeHtml(JSON.stringify(drawing))}"></div>\n`
  }
}

// search finds pages for questions as people type them: without words that stand in every sentence, and without the
// plural. Only the last word may be incomplete, and only long words misspelled, or else common words match everywhere.
// VitePress sends these functions to the browser as text, so they use nothing from outside of them.
const search = {
  options: {
    processTerm(term) {
      const word = term.toLowerCase()
      const common = /^(an?|and|are|as|at|be|because|by|can|did|do|does|for|from|ha[sd]|have|how|i|if|in|into|is|its?|me|mean|my|not|of|on|one|or|our|over|same|so|that|the|their|then|there|this|to|up|was|we|were|what|when|where|which|why|will|with|without|yet|your?)$/
      if (common.test(word)) return null
      return word.length > 3 ? word.replace(/(ies|y)$/, 'i').replace(/(?<!s)s$/, '') : word
    },
  },
  searchOptions: {
    prefix: (term, index, terms) => index === terms.length - 1,
    fuzzy: (term) => (term.length > 5 ? 0.2 : false),
  },
}

const icon = `data:image/svg+xml,${encodeURIComponent(readFileSync(join(root, 'cmd/cdc-relay/internal/console/web/icon.svg'), 'utf8'))}`

export default defineConfig({
  title: 'cdc-relay',
  description: 'A relay from the outbox table of Postgres to RabbitMQ',
  lang: 'en-US',
  // GitHub Pages serves https://cdc-relay.github.io/cdc-relay/runbook from runbook.html.
  base: '/cdc-relay/',
  cleanUrls: true,
  outDir: '../bin/site',
  cacheDir: '../.dev/vitepress',
  rewrites: { 'README.md': 'index.md' },
  srcExclude: ['results/**'],
  head: [
    ['link', { rel: 'icon', href: icon }],
    ['style', {}, '.diagram { overflow-x: auto } .diagram svg { margin: auto }'],
  ],
  markdown: {
    anchor: { slugify },
    attrs: { disable: true }, // GitHub shows {braces} as they are
    config(md) {
      md.use(outsideLinks).use(diagrams)
      md.block.ruler.disable('html_block') // VitePress takes a line that begins with <word> for HTML, also in a code span
    },
  },
  themeConfig: {
    logo: icon,
    sidebar: sidebar(),
    outline: [2, 3],
    socialLinks: [{ icon: 'github', link: repository }],
    notFound: { quote: 'There is no such page. Search for it, or begin at the home page.' },
    editLink: { pattern: `${repository}/edit/main/docs/:path`, text: 'Edit this page on GitHub' },
    search: {
      provider: 'local',
      options: {
        miniSearch: search,
        // The home page only lists the other pages.
        _render: (text, env, md) => (env.relativePath === 'index.md' ? '' : md.render(text, env)),
      },
    },
  },
})
