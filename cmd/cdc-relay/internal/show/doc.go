// Package show has what the commands and the console share to show things to people and to scripts: safe text, times
// and counts in words, the JSON forms of messages and numbers, and what happens to a message next.
package show
