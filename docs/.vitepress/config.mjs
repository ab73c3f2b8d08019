// The site of docs/*.md, built by VitePress (scripts/docs). The pages are plain Markdown that GitHub shows as well: what
// the two treat differently is settled in this file, not in the pages.
import { renderMermaidSVG } from 'beautiful-mermaid'
import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'
import { folders, page, writePages } from './examples.mjs'

const docs = fileURLToPath(new URL('..', import.meta.url))
const root = join(docs, '..')
const repository = 'https://github.com/cdc-relay/cdc-relay'
const address = 'https://cdc-relay.github.io/cdc-relay/'

// sidebar reads groups and pages from docs/README.md, the only list of pages.
function sidebar() {
  const groups = []
  for (const line of readFileSync(join(docs, 'README.md'), 'utf8').split('\n')) {
    const heading = line.match(/^## (.*)/)
    const page = line.match(/^- \[(.*?)\]\((.*?)\.md\)/)
    if (heading) groups.push({ text: heading[1], items: [] })
    if (page) groups.at(-1).items.push({ text: page[1], link: `/${page[2]}` })
  }
  const examples = Object.entries(folders).map(([name, [, text]]) => ({ text, link: `/examples/${name === 'index' ? '' : name}` }))
  return [...groups.filter((group) => group.items.length > 0), { text: 'Examples', items: examples }]
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
      if (relative(docs, file) === 'README.md') token.attrSet('href', `/pages${suffix}`)
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

// flagAnchors gives each flag of the configuration an address, such as /configuration#max-in-flight.
function flagAnchors(md) {
  md.core.ruler.push('flag-anchors', ({ tokens, env }) => {
    if (env.relativePath !== 'configuration.md') return
    for (const [index, token] of tokens.entries()) {
      const item = token.type === 'list_item_open' && tokens[index + 2]?.children?.[0]
      const flag = item && item.type === 'code_inline' && item.content.match(/^--([a-z-]+)/)
      if (flag) token.attrSet('id', flag[1])
    }
  })
}

// words are what people search for, by the page or the heading that answers, where the text has other words.
const words = {
  'architecture.md#the-idea': 'transactional outbox pattern',
  'contract.md#contract': 'insert message same transaction order',
  'consumers.md#the-inbox': 'idempotency idempotent',
  'delivery.md#coalescing': 'coalesce',
  'delivery.md#order': 'keep messages of one customer in order fifo',
  'examples/index.md#examples': 'dotnet .NET C# spring boot',
  'examples/index.md#what-orms-trip-over': 'sequelize jdbc doctrine prisma',
  'examples/java.md': 'spring boot',
  'examples/php.md': 'laravel eloquent',
  'examples/ruby.md': 'rails ruby on rails activerecord',
  'guarantees.md#not-promised': 'exactly once',
  'performance.md#results': 'throughput benchmark',
  'runbook.md#alerts': 'prometheus alerts',
  'recipes.md#replay-events-into-a-new-queue': 'backfill history',
  'recipes.md#large-bodies-claim-check': 'large payload',
  'runbook.md': 'stuck message unstick',
  'runbook.md#dead-letters': 'retry dead letters exchange fixed poison message',
  'runbook.md#wal-grows': 'replication slot fills disk',
  'testing.md#go': 'test code without RabbitMQ',
  'sizing.md#many-relays': 'too many connections',
  'upgrade.md#the-relay': 'zero downtime rollback release',
  'upgrade.md#remove': 'uninstall',
  'operations.md#several-relays': 'high availability leader election',
  'operations.md#failover': 'read replica standby promotion point in time recovery PITR',
  'install.md#several-outboxes': 'many relays fifty outboxes',
  'migrate.md': 'migration switch from replace rename settings',
  'compare.md': 'why not debezium alternatives license licence',
}

// withWords adds the words behind their headings, for the index of the search alone.
function withWords(text, path) {
  const lines = text.split('\n')
  for (const [place, more] of Object.entries(words)) {
    const [file, anchor] = place.split('#')
    if (file !== path) continue
    const at = lines.findIndex((line) => /^#+ /.test(line) && (!anchor || slugify(line.replace(/^#+ /, '')) === anchor))
    if (at < 0) throw new Error(`${path}: there is no heading for the words of ${place}`)
    lines.splice(at + 1, 0, '', `${more} `.repeat(6), '') // as often as a page about it has them
  }
  return lines.join('\n')
}

// llms writes the docs for coding assistants: llms.txt lists the pages, llms-full.txt has all of them, and agents.md has
// those about the code of an application.
function llms({ outDir, pages }) {
  const names = pages.filter((name) => /^[a-z-]+\.md$/.test(name) && name !== 'README.md').sort()
  const text = (name) => readFileSync(join(docs, name), 'utf8').replace(/\]\((?![#a-z]+:|#)([^)\s]*?)(\.md)?(#[^)]*)?\)/g, (whole, path, isPage, anchor = '') => (isPage && !path.includes('/') ? `](${address}${path}${anchor})` : whole))
  const title = (name) => text(name).match(/^# (.*)/m)[1]
  const head = '# cdc-relay\n\n> It publishes the rows of a Postgres outbox table to RabbitMQ: at least once, in order of a key, after the commit.\n'
  const all = (chosen) => head + chosen.map((name) => `\n${text(name)}`).join('')
  const examples = Object.keys(folders).map((name) => [`examples/${name === 'index' ? '' : name}`, folders[name][1]])
  const list = [...names.map((name) => [name.replace('.md', ''), title(name)]), ...examples]
  writeFileSync(join(outDir, 'llms.txt'), `${head}\n## Pages\n\n${list.map(([path, name]) => `- [${name}](${address}${path})`).join('\n')}\n\n## Whole\n\n- [All pages in one](${address}llms-full.txt)\n- [What an application needs](${address}agents.md)\n`)
  writeFileSync(join(outDir, 'llms-full.txt'), all(names) + Object.keys(folders).map((name) => `\n${page(name)}`).join(''))
  writeFileSync(join(outDir, 'agents.md'), all(['contract.md', 'functions.md', 'ordering-keys.md', 'scheduled-messages.md', 'consumers.md', 'testing.md', 'guarantees.md']))
}

// search finds pages for questions as people type them: without words that stand in every sentence, and without the
// plural. Only the last word may be incomplete, and only long words misspelled, or else common words match everywhere.
// VitePress sends these functions to the browser as text, so they use nothing from outside of them.
const search = {
  options: {
    processTerm(term) {
      const word = term.toLowerCase()
      const common = /^(an?|and|are|as|at|be|because|by|can|did|do|does|for|from|ha[sd]|have|how|i|if|in|into|is|its?|may|me|mean|my|not|of|on|one|or|our|over|same|so|that|the|their|then|there|this|to|up|was|we|were|what|when|where|which|why|will|with|without|yet|your?)$/
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

writePages()

export default defineConfig({
  title: 'cdc-relay',
  description: 'A relay from the outbox table of Postgres to RabbitMQ',
  lang: 'en-US',
  // GitHub Pages serves https://cdc-relay.github.io/cdc-relay/runbook from runbook.html.
  base: '/cdc-relay/',
  cleanUrls: true,
  outDir: '../bin/site',
  cacheDir: '../.dev/vitepress',
  rewrites: { 'README.md': 'pages.md', 'site/index.md': 'index.md' },
  srcExclude: ['results/**'],
  buildEnd: llms,
  head: [
    ['link', { rel: 'icon', href: icon }],
  ],
  markdown: {
    anchor: { slugify },
    attrs: { disable: true }, // GitHub shows {braces} as they are
    config(md) {
      md.use(outsideLinks).use(diagrams).use(flagAnchors)
      md.block.ruler.disable('html_block') // VitePress takes a line that begins with <word> for HTML, also in a code span
    },
  },
  themeConfig: {
    logo: icon,
    nav: [
      { text: 'Start', link: '/getting-started' },
      { text: 'Runbook', link: '/runbook' },
      { text: 'Configuration', link: '/configuration' },
      { text: 'Examples', link: '/examples/' },
      { text: 'Compare', link: '/compare' },
      { text: 'All pages', link: '/pages' },
    ],
    sidebar: sidebar(),
    outline: [2, 3],
    socialLinks: [{ icon: 'github', link: repository }],
    notFound: { quote: 'There is no such page. Search for it, or begin at the home page.' },
    editLink: { pattern: `${repository}/edit/main/docs/:path`, text: 'Edit this page on GitHub' },
    search: {
      provider: 'local',
      options: {
        miniSearch: search,
        // The home page and the list of pages only lead to the others.
        _render: (text, env, md) => (['README.md', 'index.md', 'pages.md', 'site/index.md'].includes(env.relativePath) ? '' : md.render(withWords(text, env.relativePath), env)),
      },
    },
  },
})
