// Checks of the built site, bin/site: links, search, and what it must not contain. Run by scripts/docs --check.
import assert from 'node:assert/strict'
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { createRequire } from 'node:module'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { test } from 'node:test'
import { fileURLToPath, pathToFileURL } from 'node:url'

const root = fileURLToPath(new URL('../..', import.meta.url))
const site = join(root, 'bin/site')
const address = 'https://cdc-relay.github.io/cdc-relay/'
const base = new URL(address).pathname
const { default: config } = await import(pathToFileURL(join(root, 'docs/.vitepress/config.mjs')))

const files = readdirSync(site, { recursive: true }).filter((name) => statSync(join(site, name)).isFile())
const pages = new Map() // by path, such as /cdc-relay/runbook
for (const name of files.filter((name) => name.endsWith('.html') && name !== '404.html')) {
  const html = readFileSync(join(site, name), 'utf8')
  pages.set(base + name.replace(/(\bindex)?\.html$/, ''), {
    ids: new Set([...html.matchAll(/ id="([^"]*)"/g)].map((match) => match[1])),
    links: [...html.matchAll(/<a [^>]*href="([^"]*)"/g)].map((match) => match[1].replaceAll('&amp;', '&')),
    files: [...html.matchAll(/<(?:img|script|link) [^>]*(?:src|href)="([^"]*)"/g)].map((match) => match[1]),
  })
}

const examples = await import(pathToFileURL(join(root, 'docs/.vitepress/examples.mjs')))

// read returns a section of a page of docs/ with everything below it, or the page.
function read(name, anchor) {
  const example = name.match(/^examples\/(.*)\.md$/)
  const whole = example ? examples.page(example[1]) : readFileSync(join(root, 'docs', name), 'utf8')
  const lines = whole.replace(/```[^]*?```/g, (code) => code.replace(/^#/gm, ' #')).split('\n')
  if (!anchor) return lines.join(' ')
  const level = (line) => line.match(/^#+(?= )/)?.[0].length ?? 99
  const from = lines.findIndex((line) => level(line) < 99 && config.markdown.anchor.slugify(line.replace(/^#+ /, '')) === anchor)
  assert.ok(from >= 0, `docs/${name} has no heading ${anchor}`)
  const length = lines.slice(from + 1).findIndex((line) => level(line) <= level(lines[from]))
  return lines.slice(from, length < 0 ? undefined : from + 1 + length).join(' ')
}

test('every page of docs is in the site', () => {
  const names = readdirSync(join(root, 'docs')).filter((name) => name.endsWith('.md'))
  const docs = names.map((name) => base + name.replace('README', 'pages').replace('.md', ''))
  const shown = Object.keys(examples.folders).map((name) => `${base}examples/${name.replace('index', '')}`)
  assert.deepEqual([...pages.keys()].sort(), [base, ...docs, ...shown].sort())
})

test('every link leads to a page and a heading, every other one to a file', () => {
  let checked = 0
  for (const [path, page] of pages) {
    for (const link of page.links) {
      const url = new URL(link, address.replace(base, path))
      if (url.origin !== new URL(address).origin) continue
      const anchor = decodeURIComponent(url.hash.slice(1))
      const target = pages.get(url.pathname)
      assert.ok(target, `${path}: there is no page ${link}`)
      if (anchor) assert.ok(target.ids.has(anchor), `${path}: there is no heading ${link}`)
      checked++
    }
    for (const file of page.files.filter((file) => !file.startsWith('data:'))) {
      assert.ok(file.startsWith(base) && existsSync(join(site, file.slice(base.length))), `${path}: ${file}`)
    }
  }
  assert.ok(checked > 1000, `${checked} links`)
})

test('every page is at most three clicks from the home page', () => {
  let reached = new Set([base])
  for (let clicks = 0; clicks < 3; clicks++) {
    reached = new Set([...reached].flatMap((path) => [path, ...pages.get(path).links.map((link) => new URL(link, address.replace(base, path)).pathname)]))
    reached = new Set([...reached].filter((path) => pages.has(path)))
  }
  assert.deepEqual([...pages.keys()].filter((path) => !reached.has(path)), [])
})

test('the search finds the answer to each question', async (t) => {
  const chunks = join(site, 'assets/chunks')
  const name = readdirSync(chunks).find((name) => name.startsWith('@localSearchIndex'))
  // A module without a package.json: Node.js 18 would read the file as CommonJS.
  const { default: index } = await import(`data:text/javascript;base64,${readFileSync(join(chunks, name), 'base64')}`)
  const { searchOptions, options } = config.themeConfig.search.options.miniSearch
  // As VitePress' VPLocalSearchBox.vue.
  const search = createRequire(join(root, 'docs/package.json'))('minisearch').loadJSON(index, {
    fields: ['title', 'titles', 'text'],
    storeFields: ['title', 'titles'],
    searchOptions: { fuzzy: 0.2, prefix: true, boost: { title: 4, text: 2, titles: 1 }, ...searchOptions },
    ...options,
  })
  const questions = JSON.parse(readFileSync(join(root, 'test/site/questions.json'), 'utf8'))
  assert.ok(questions.length >= 62)
  for (const { question, answer, phrase } of questions) {
    await t.test(question, () => {
      const [page, anchor] = answer.split('#')
      assert.ok(read(page, anchor).replace(/\s+/g, ' ').includes(phrase), `docs/${answer} does not say: ${phrase}`)
      const found = search.search(question).map((result) => result.id.slice(base.length)).slice(0, 3)
      assert.ok(found.includes(`${page.replace(/(index)?\.md$/, '')}#${anchor}`), `${answer} is not among ${found.join(', ')}`)
    })
  }
})

test('every flag of the configuration has an address', () => {
  const flags = [...readFileSync(join(root, 'docs/configuration.md'), 'utf8').matchAll(/^- `--([a-z-]+)/gm)].map((match) => match[1])
  assert.ok(flags.length > 30, `${flags.length} flags`)
  const { ids } = pages.get(`${base}configuration`)
  assert.deepEqual(flags.filter((flag) => !ids.has(flag)), [])
})

test('coding assistants find all pages in one file', () => {
  const list = readFileSync(join(site, 'llms.txt'), 'utf8'), whole = readFileSync(join(site, 'llms-full.txt'), 'utf8')
  for (const path of pages.keys()) {
    if (path === base || path === `${base}pages`) continue
    assert.ok(list.includes(`](${address}${path.slice(base.length)})`), `llms.txt lacks ${path}`)
  }
  for (const name of readdirSync(join(root, 'docs')).filter((name) => name.endsWith('.md') && name !== 'README.md')) {
    assert.ok(whole.includes(readFileSync(join(root, 'docs', name), 'utf8').split('\n')[0]), `llms-full.txt lacks ${name}`)
  }
  assert.match(readFileSync(join(site, 'agents.md'), 'utf8'), /INSERT INTO outbox[^]*message_id/)
})

test('every alert leads to a heading of the site', () => {
  const rules = readFileSync(join(root, 'deploy/prometheus/rules.yaml'), 'utf8')
  const urls = [...rules.matchAll(/^ +runbook_url: (.*)$/gm)].map((match) => match[1])
  assert.equal(urls.length, rules.match(/^ +- alert: /gm).length)
  for (const url of urls) {
    assert.ok(url.startsWith(address), url)
    const { pathname, hash } = new URL(url)
    assert.ok(hash && pages.get(pathname)?.ids.has(hash.slice(1)), url)
  }
})

test('nothing comes from another host, and nothing tells where it was built', () => {
  for (const name of files) {
    const text = readFileSync(join(site, name), 'latin1')
    for (const secret of [join(root, 'docs'), homedir() + '/', '/node_modules/', 'registry.npmjs.org']) assert.ok(!text.includes(secret), `${name} contains ${secret}`)
    if (/\.(html|css)$/.test(name)) assert.doesNotMatch(text, /(@import|url\(|src=|<link [^>]*href=)["' ]*(https?:)?\/\/(?!www\.w3\.org)/, name)
  }
  const lock = readFileSync(join(root, 'docs/package-lock.json'), 'utf8')
  assert.ok(!lock.includes('"resolved"'), 'write docs/package-lock.json with npm install --omit-lockfile-registry-resolved')
})
