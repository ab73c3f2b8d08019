// Package peer is what the programs of this module share: how the soak calls them.
package peer

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Main calls the program with the verb of the last argument, until SIGTERM. It answers "version" itself, and exits with
// 1 after an error. The pool is closed after the call.
func Main(name, version string, call func(ctx context.Context, verb string, pool *pgxpool.Pool) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	verb := os.Args[len(os.Args)-1]
	if verb == "version" {
		fmt.Println(version)
		return
	}
	if err := withPool(ctx, verb, call); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %s\n", name, err)
		os.Exit(1)
	}
}

func withPool(
	ctx context.Context, verb string, call func(ctx context.Context, verb string, pool *pgxpool.Pool) error,
) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	return call(ctx, verb, pool)
}
