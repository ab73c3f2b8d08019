package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// contained runs a server in a container. Ports and data stay the same across restarts.
type contained struct {
	docker *testcontainers.DockerClient
	id     string
}

func (c *contained) start(ctx context.Context) error {
	_, err := c.docker.ContainerStart(ctx, c.id, client.ContainerStartOptions{})
	return err
}

func (c *contained) signal(ctx context.Context, sig syscall.Signal) error {
	var err error
	switch sig {
	case syscall.SIGSTOP:
		_, err = c.docker.ContainerPause(ctx, c.id, client.ContainerPauseOptions{})
	case syscall.SIGCONT:
		_, err = c.docker.ContainerUnpause(ctx, c.id, client.ContainerUnpauseOptions{})
	default:
		_, err = c.docker.ContainerKill(ctx, c.id, client.ContainerKillOptions{Signal: strconv.Itoa(int(sig))})
	}
	return err
}

func (c *contained) wait(ctx context.Context) error {
	result := c.docker.ContainerWait(ctx, c.id,
		client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-result.Result:
		return nil
	case err := <-result.Error:
		return fmt.Errorf("wait for the container to end: %w", err)
	}
}

// tool runs a program in the container.
func (c *contained) tool(ctx context.Context, args ...string) (string, error) {
	made, err := c.docker.ExecCreate(ctx, c.id,
		client.ExecCreateOptions{Cmd: args, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return "", err
	}
	attached, err := c.docker.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return "", err
	}
	defer attached.Close()
	output, err := demultiplex(attached.Reader)
	if err != nil {
		return output, err
	}
	ended, err := c.docker.ExecInspect(ctx, made.ID, client.ExecInspectOptions{})
	if err == nil && ended.ExitCode != 0 {
		err = fmt.Errorf("%s: exit code %d: %s", strings.Join(args, " "), ended.ExitCode, strings.TrimSpace(output))
	}
	return output, err
}

func (c *contained) pid() int { return 0 }

func (c *contained) log(ctx context.Context) string { return readLog(ctx, c.docker, c.id) }

func (c *contained) describe(s *state) { s.Container = c.id }

// close can be called twice: by a test, and again after all tests.
func (c *contained) close(ctx context.Context) error {
	_, err := c.docker.ContainerRemove(ctx, c.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && strings.Contains(err.Error(), "No such container") {
		err = nil
	}
	return errors.Join(err, c.docker.Close())
}

// adoptedContainer runs tools in a container that another process started. It cannot stop the container.
type adoptedContainer struct {
	foreign
	id string
}

func (a adoptedContainer) tool(ctx context.Context, args ...string) (string, error) {
	docker, err := engine(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = docker.Close() }()
	return (&contained{docker: docker, id: a.id}).tool(ctx, args...)
}

// describe passes on the state that this process received.
func (a adoptedContainer) describe(s *state) { s.Container = a.id }

// ownerLabel is the label with the process that owns a container.
const ownerLabel = "cdc-relay.owner"

// owner returns the name of this machine and the number of this process.
func owner() string {
	host, _ := os.Hostname()
	return host + ":" + strconv.Itoa(os.Getpid())
}

// sweep removes containers of dead processes: those whose process number is no longer in use on this machine.
func sweep(ctx context.Context, docker *testcontainers.DockerClient) {
	listed, err := docker.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", ownerLabel),
	})
	if err != nil {
		return // the next sweep tries again
	}
	host, _ := os.Hostname()
	for _, item := range listed.Items {
		number, ours := strings.CutPrefix(item.Labels[ownerLabel], host+":")
		pid, err := strconv.Atoi(number)
		if !ours || err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			continue
		}
		_, _ = docker.ContainerRemove(ctx, item.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	}
}
