package handler

import (
	"regexp"
	"slices"
	"strings"
)

// Environment returns an environment, as os.Environ does, for the handler: without what the relay and its
// libraries read as credentials, or as their own settings that may contain some. A handler gets its credentials under
// other names. Without:
//
//   - CDC_RELAY_…: settings of the relay
//   - PG and capital letters (PGPASSWORD, PGPASSFILE, PGSERVICEFILE, PGSSLKEY, …): what libpq reads
//   - OTEL_EXPORTER_…: headers, keys and addresses of OpenTelemetry
//   - DD_API_KEY, DD_APP_KEY, DD_DOGSTATSD_URL: Datadog
//   - CREDENTIALS_DIRECTORY, NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID, LISTEN_…: what systemd gives the relay
func Environment(environ []string) []string {
	own := regexp.MustCompile(`^(?i:CDC_RELAY_.*|PG[A-Z]+|OTEL_EXPORTER_.*|DD_(API_KEY|APP_KEY|DOGSTATSD_URL)|` +
		`CREDENTIALS_DIRECTORY|NOTIFY_SOCKET|WATCHDOG_(USEC|PID)|LISTEN_(FDS|FDNAMES|PID))$`)
	return slices.DeleteFunc(slices.Clone(environ), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return own.MatchString(name)
	})
}
