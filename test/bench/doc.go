// Package bench measures the relay beside what limits it, on servers of its own, in rounds that take turns so that
// whatever else the machine does meets all of them alike. The command line is cmd/cdc-relay-bench.
//
// gauge measures processes, load writes and consumes, limit holds what the relay is measured against.
package bench
