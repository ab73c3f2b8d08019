// Package bench measures the relay and its limits on its own servers. Cases take turns in rounds, so that other load on
// the machine affects all of them alike. The command line is test/cmd/cdc-relay-bench.
//
// gauge measures processes, load writes and consumes, limit has the programs that the relay is compared with.
package bench
