// The pages of the examples are the READMEs of examples/ and clients/python, with the programs beside them. They are
// written to docs/examples, because the search of VitePress reads only files.
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../..', import.meta.url))
const repository = 'https://github.com/cdc-relay/cdc-relay'
const languages = { mjs: 'js', py: 'python', rb: 'ruby', php: 'php', rs: 'rust', java: 'java', sql: 'sql', sh: 'sh' }

export const folders = {
  index: ['examples', 'Examples'],
  psql: ['examples/psql', 'SQL'],
  python: ['examples/python', 'Python: Django, SQLAlchemy'],
  'python-package': ['clients/python', 'Python package: Django, Celery'],
  node: ['examples/node', 'Node: TypeORM, Sequelize, Drizzle'],
  java: ['examples/java', 'Java: Spring, JDBC'],
  ruby: ['examples/ruby', 'Ruby on Rails'],
  php: ['examples/php', 'PHP: Laravel, Eloquent'],
  go: ['examples/go', 'Go: pgx, gorm'],
  rust: ['examples/rust', 'Rust'],
  exec: ['examples/exec', 'Kafka, Redis, Celery, HTTP'],
}

// link returns a link of a README as a link of the page: to another page, or to the file on GitHub.
function link(folder, href) {
  if (/^(#|[a-z]+:)/.test(href)) return href
  const [path, anchor] = href.split('#')
  const file = relative(root, join(root, folder, path))
  const suffix = anchor ? `#${anchor}` : ''
  const page = Object.keys(folders).find((name) => [folders[name][0], `${folders[name][0]}/README.md`].includes(file))
  if (page) return `./${page}.md${suffix}`
  const doc = file.match(/^docs\/([a-z-]+\.md)$/)
  if (doc) return `../${doc[1]}${suffix}`
  const kind = existsSync(join(root, file)) && statSync(join(root, file)).isDirectory() ? 'tree' : 'blob'
  return `${repository}/${kind}/main/${file}${suffix}`
}

// page returns the README with the programs that it names.
export function page(name) {
  const [folder] = folders[name]
  const text = readFileSync(join(root, folder, 'README.md'), 'utf8').replace(/\]\(([^)\s]+)\)/g, (_, href) => `](${link(folder, href)})`)
  const programs = name === 'index' || name === 'python-package' ? [] : readdirSync(join(root, folder)).filter((file) => languages[file.split('.').pop()])
  const shown = programs.map((file) => {
    const code = readFileSync(join(root, folder, file), 'utf8').trimEnd()
    return `\n### ${file}\n\n\`\`\`\`${languages[file.split('.').pop()]}\n${code}\n\`\`\`\`\n`
  })
  return text + (shown.length > 0 ? `\n## Programs\n${shown.join('')}` : '')
}

// writePages writes the pages.
export function writePages() {
  mkdirSync(join(root, 'docs/examples'), { recursive: true })
  for (const name of Object.keys(folders)) {
    writeFileSync(join(root, 'docs/examples', `${name}.md`), `---\neditLink: false\n---\n\n${page(name)}`)
  }
}
