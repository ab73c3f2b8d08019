package services

import (
	"context"
	"fmt"
)

func containerPostgres(context.Context, Options) (*Postgres, error) {
	return nil, fmt.Errorf("no engine: %w", errUnavailable)
}

func containerRabbitMQ(context.Context, Options) (*RabbitMQ, error) {
	return nil, fmt.Errorf("no engine: %w", errUnavailable)
}

func adoptedContainer(string) runner { return foreign{} }
