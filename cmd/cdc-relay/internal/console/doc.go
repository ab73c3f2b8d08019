// Package console serves the pages that people on call open in a browser: what waits, what fails, one message, check.
//
// A page is a path, a function that turns a request into data, and a template in web/pages.html that turns the data
// into HTML; see pages. The template "frame" adds the navigation around it. Every page works without JavaScript. With
// JavaScript, a page that updates itself asks for its HTML again every two seconds. The charts are SVG from the server,
// so they work without JavaScript, too; a script adds the values under the pointer. Pages, updates, changes and samples
// each have a few connections to the database, so browsers cannot overload it.
//
// Each request first passes the gate. It must name a host of this console, and must not come from a page of another
// site. Then Access decides: without a token and a login header, everybody is the "local user", and the console
// listens on loopback only. With a token, the browser asks for it as the password, and the user name is what the user
// types. With a login header, a proxy names the user, and sends the token. The console has no cookies and keeps no
// logins.
//
// Only with Config.AllowChanges may users change rows, and then every user may. The page of a change first shows how
// many rows match (GET /change). The user confirms that number (POST /change); if more match by then, the console asks
// again. A change continues without the browser, and the log says who made it.
//
// Where things are:
//
//   - console.go: Config, the HTTP server, the routes, the headers of every answer
//   - access.go: who may open the console, and the values of the flags about it
//   - gate.go: the login, and what else a request must have
//   - sessions.go: the connections to the database
//   - pages.go: the pages, and how one is rendered
//   - history.go, tiles.go: the samples of the last 15 minutes, and the newest one as the overview's tiles
//   - chart.go: what the charts show
//   - lists.go, table.go: the pages with a list, and their tables
//   - filters.go: the filters in a URL, in a form and as links
//   - search.go: messages by id or key, on every page
//   - relays.go: what each relay told
//   - message.go, timeline.go, content.go, tree.go: the page of one message, its life, its headers and body
//   - tail.go: the newest messages of all tables
//   - check.go: the check in the background
//   - choices.go, changes.go: the buttons of changes; resend and delete
//   - web: templates, style and script
package console
