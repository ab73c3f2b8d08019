package services

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
)

// StartPostgres provides a server and waits until it accepts connections. The caller closes it.
func StartPostgres(ctx context.Context, opts Options) (*Postgres, error) {
	if os.Getenv(EnvPostgresBin) != "" && opts.Way == "" && os.Getenv(EnvState) == "" &&
		Way(os.Getenv(EnvWay)) != Containers {
		opts.Way = Local // nothing else uses the programs that were named
	}
	if !opts.Private {
		// Tests create and drop slots all the time. Postgres computes without a lock which WAL the slots need, so a
		// checkpoint sometimes removes a segment that one of them still needs (ReplicationSlotsComputeRequiredLSN).
		opts.Settings = append(slices.Clip(opts.Settings), "wal_keep_size=256MB")
	}
	server, err := provide(ctx, opts, map[Way]provider[*Postgres]{
		Environment: givenPostgres, Containers: containerPostgres, Local: localPostgres,
	})
	if err != nil {
		return nil, fmt.Errorf("provide postgres: %w", err)
	}
	if err := server.Start(ctx); err != nil {
		return nil, errors.Join(err, server.Close(context.WithoutCancel(ctx)))
	}
	return server, nil
}

// StartRabbitMQ provides a broker and waits until it accepts connections. The caller closes it.
func StartRabbitMQ(ctx context.Context, opts Options) (*RabbitMQ, error) {
	server, err := provide(ctx, opts, map[Way]provider[*RabbitMQ]{
		Environment: givenRabbitMQ, Containers: containerRabbitMQ, Local: localRabbitMQ,
	})
	if err != nil {
		return nil, fmt.Errorf("provide rabbitmq: %w", err)
	}
	if err := server.Start(ctx); err != nil {
		return nil, errors.Join(err, server.Close(context.WithoutCancel(ctx)))
	}
	return server, nil
}

// given reads an address from the environment. Its errors do not quote the value, which may contain a password.
func given(variable string) (*url.URL, error) {
	text := os.Getenv(variable)
	if text == "" {
		return nil, fmt.Errorf("%s is not set: %w", variable, errUnavailable)
	}
	address, err := url.Parse(text)
	if err != nil || address.Host == "" {
		return nil, fmt.Errorf("%s is not a URL with a host", variable)
	}
	return address, nil
}

func givenPostgres(context.Context, Options) (*Postgres, error) {
	address, err := given(EnvDatabase)
	if err != nil {
		return nil, err
	}
	return &Postgres{server: server{address: address, Way: Environment}}, nil
}

func givenRabbitMQ(context.Context, Options) (*RabbitMQ, error) {
	address, err := given(EnvAMQP)
	if err != nil {
		return nil, err
	}
	broker := &RabbitMQ{server: server{address: address, Way: Environment}}
	if file := os.Getenv(EnvState); file != "" {
		if err := broker.adopt(file); err != nil {
			return nil, err
		}
	}
	return broker, nil
}
