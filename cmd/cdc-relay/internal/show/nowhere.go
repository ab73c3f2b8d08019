package show

// Nowhere says why a message may be in no table, with or without a history.
func Nowhere(history bool) string {
	const others = ", deleted (cancelled, expired, or replaced by its coalesce_key), or not committed."
	if history {
		return "No table can tell why: published before the history begins" + others
	}
	return "No table can tell why: published and deleted" + others + " Relays with --keep-published keep a history."
}
