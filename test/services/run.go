package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sync/errgroup"
)

// Run provides both servers and runs a command with their addresses in its environment. Then it stops what it started,
// and returns the command's exit code.
func Run(ctx context.Context, opts Options, name string, args ...string) (int, error) {
	wanted := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, wanted...)
	defer signal.Stop(signals)
	starting, stop := signal.NotifyContext(ctx, wanted...)
	both, err := startBoth(starting, opts)
	stop()
	defer func() {
		if err := both.close(context.WithoutCancel(ctx)); err != nil {
			opts.log("stop services: %v", err)
		}
	}()
	if err != nil {
		return 1, err
	}
	opts.log("postgres %s on %s (%s)", both.postgres.Version, both.postgres.Addr(), both.postgres.Way)
	opts.log("rabbitmq %s on %s (%s)", both.rabbitmq.Version, both.rabbitmq.Addr(), both.rabbitmq.Way)
	return both.run(opts, signals, name, args)
}

// pair holds both servers, and the folder for their state file.
type pair struct {
	postgres *Postgres
	rabbitmq *RabbitMQ
	folder   string
}

func startBoth(ctx context.Context, opts Options) (both pair, err error) {
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		both.postgres, err = StartPostgres(groupCtx, opts)
		return err
	})
	group.Go(func() (err error) {
		both.rabbitmq, err = StartRabbitMQ(groupCtx, opts)
		return err
	})
	if err = group.Wait(); err == nil {
		both.folder, err = os.MkdirTemp("", "cdc-relay-run-")
	}
	return both, err
}

func (b pair) close(ctx context.Context) error {
	var errs []error
	if b.postgres != nil {
		errs = append(errs, b.postgres.Close(ctx))
	}
	if b.rabbitmq != nil {
		errs = append(errs, b.rabbitmq.Close(ctx))
	}
	if b.folder != "" {
		errs = append(errs, os.RemoveAll(b.folder))
	}
	return errors.Join(errs...)
}

// run starts the command in its own process group, so that each signal reaches it once: from here, and not also from
// the terminal. A second signal would cut short what the first one asked for.
func (b pair) run(opts Options, signals <-chan os.Signal, name string, args []string) (int, error) {
	stateFile := filepath.Join(b.folder, "state.json")
	if err := b.rabbitmq.WriteState(stateFile); err != nil {
		return 1, fmt.Errorf("write the state of the services: %w", err)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(),
		EnvDatabase+"="+b.postgres.URL(""), EnvAMQP+"="+b.rabbitmq.URL(""), EnvState+"="+stateFile)
	if b.postgres.Way == Containers {
		cmd.Env = append(cmd.Env, EnvWay+"="+string(Containers))
	}
	command, err := startProcess(cmd, b.folder)
	if err != nil {
		return 1, err
	}
	for {
		select {
		case sig := <-signals:
			if opts.SignalLeader {
				_ = command.signal(sig.(syscall.Signal))
			} else {
				_ = command.signalGroup(sig.(syscall.Signal))
			}
		case <-command.done:
			return exitCode(cmd.ProcessState), nil
		}
	}
}

// exitCode returns the code that a shell would: 128 + the signal's number for a command that a signal ended.
func exitCode(ended *os.ProcessState) int {
	if status, ok := ended.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return ended.ExitCode()
}
