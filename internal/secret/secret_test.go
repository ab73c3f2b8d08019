package secret_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/secret"
	"github.com/cdc-relay/cdc-relay/test/services"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	services.Must(t, os.WriteFile(file, []byte(text), 0o600))
}

func wantText(t *testing.T, of secret.Text, want string) {
	t.Helper()
	if text, err := of.Read(); text != want || err != nil {
		t.Errorf("got %q, %v, want %q", text, err, want)
	}
}

// Kubernetes mounts a folder with a symbolic link ..data to the folder of the newest version, and replaces the link.
func TestAMountedSecretOfKubernetesIsReadAgain(t *testing.T) {
	mount := t.TempDir()
	version := func(name, text string) {
		services.Must(t, os.Mkdir(filepath.Join(mount, name), 0o700))
		write(t, filepath.Join(mount, name, "url"), text)
		services.Must(t, os.Symlink(name, filepath.Join(mount, "..data_tmp")))
		services.Must(t, os.Rename(filepath.Join(mount, "..data_tmp"), filepath.Join(mount, "..data")))
	}
	version("..first", "old\n")
	services.Must(t, os.Symlink(filepath.Join("..data", "url"), filepath.Join(mount, "url")))
	of := secret.Text{File: filepath.Join(mount, "url")}
	wantText(t, of, "old")
	version("..second", "new\n")
	wantText(t, of, "new")
}

// A program that writes into the file empties it first.
func TestAnEmptyFileIsAnError(t *testing.T) {
	of := secret.Text{File: filepath.Join(t.TempDir(), "url")}
	if _, err := of.Read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	for _, text := range []string{"", "\n", "\r\n"} {
		write(t, of.File, text)
		if _, err := of.Read(); !errors.Is(err, secret.ErrEmpty) {
			t.Errorf("%q: got %v", text, err)
		}
	}
	write(t, of.File, "whole\r\n")
	wantText(t, of, "whole")
	write(t, of.File, strings.Repeat("x", secret.Most+1))
	if _, err := of.Read(); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("got %v", err)
	}
}

func TestTheOriginOfARejectedPassword(t *testing.T) {
	of := secret.Text{File: filepath.Join(t.TempDir(), "url")}
	write(t, of.File, "x")
	written := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	services.Must(t, os.Chtimes(of.File, written, written))
	if got, want := of.Origin(), "the password is that of "+of.File+", written 2026-02-03T04:05:06Z"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := (secret.Text{Value: "x"}).Origin(); got != "" {
		t.Errorf("of no file: %s", got)
	}
}
