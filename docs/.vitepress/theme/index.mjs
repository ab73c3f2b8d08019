// The theme of the site: VitePress' own, with a few rules.
import DefaultTheme from 'vitepress/theme'
import './style.css'

export default DefaultTheme
