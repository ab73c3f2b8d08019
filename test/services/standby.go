package services

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// standbySlot is the physical slot that retains WAL for the standby.
const standbySlot = "standby"

// StartStandby starts a streaming standby of a private server, and waits until it answers queries. Settings are like
// "recovery_min_apply_delay=1s". From Postgres 17 on it copies failover slots. It uses the physical slot "standby", so
// a server can have only one. The caller closes it before its primary.
//
// It copies the data itself: some installations do not have pg_basebackup.
func (p *Postgres) StartStandby(ctx context.Context, settings ...string) (*Postgres, error) {
	if p.site == nil {
		return nil, fmt.Errorf("start a standby: %w", errNotOurs)
	}
	standby, err := p.site.another(p.standbySettings(settings))
	if err != nil {
		return nil, fmt.Errorf("start a standby: %w", err)
	}
	if err = p.copyTo(ctx, standby.site); err == nil {
		err = standby.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a standby: %w", err), standby.Close(context.WithoutCancel(ctx)))
	}
	return standby, nil
}

func (p *Postgres) standbySettings(more []string) []string {
	settings := append([]string{
		"primary_conninfo=" + p.standbyConninfo(), "primary_slot_name=" + standbySlot, "hot_standby=on",
		"hot_standby_feedback=on", "wal_retrieve_retry_interval=200ms", "wal_receiver_status_interval=1s",
	}, more...)
	if p.Major() >= 17 {
		settings = append(settings, "sync_replication_slots=on")
	}
	return settings
}

// Promote makes a standby a primary and waits until it is one.
func (p *Postgres) Promote(ctx context.Context) error {
	return p.Exec(ctx, "", "SELECT pg_promote(true, 60)")
}

// standbyConninfo names a database: without one, slots are not copied.
func (p *Postgres) standbyConninfo() string {
	return fmt.Sprintf("host=%s port=%s user=%s password=%s dbname=%s application_name=standby",
		p.address.Hostname(), p.address.Port(), postgresUser, postgresPassword, postgresDatabase)
}

// copyTo makes an online backup: the WAL from the slot's position on repairs files that change during the copy.
func (p *Postgres) copyTo(ctx context.Context, to *site) error {
	conn, err := pgx.Connect(ctx, p.URL(""))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	// The backup's end names the WAL that the standby needs. The standby fetches it from the slot: nothing is archived.
	const begin, end = "SELECT pg_backup_start('standby', true)", "SELECT labelfile FROM pg_backup_stop(false)"
	const reserve = `SELECT pg_create_physical_replication_slot('` + standbySlot + `', true)
		WHERE NOT EXISTS (SELECT 1 FROM pg_replication_slots WHERE slot_name = '` + standbySlot + `')`
	for _, statement := range []string{reserve, begin} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	if err := copyData(p.site.data, to.data); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, end).Scan(&label); err != nil {
		return err
	}
	for name, content := range map[string]string{"backup_label": label, "standby.signal": ""} {
		if err := os.WriteFile(filepath.Join(to.data, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	return to.who.ownAll(to.data)
}

// copyData copies a server's data folder without its WAL, its slots and the files of the running server.
func copyData(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile; the WAL repairs it
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, from)
		copied := filepath.Join(to, name)
		switch folder, _ := filepath.Split(name); {
		case name == "/postmaster.pid", name == "/postmaster.opts",
			strings.HasPrefix(folder, "/pg_wal/") && !entry.IsDir():
			return nil
		case folder == "/pg_replslot/":
			return fs.SkipDir
		case name == "":
			return nil
		case entry.IsDir():
			return os.Mkdir(copied, 0o700)
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(copied, content, 0o600)
	})
}
