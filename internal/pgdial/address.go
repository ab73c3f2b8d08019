package pgdial

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgerrcode"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/text/unicode/norm"

	"github.com/cdc-relay/cdc-relay/internal/pgcode"
	"github.com/cdc-relay/cdc-relay/internal/problem"
	"github.com/cdc-relay/cdc-relay/internal/secret"
)

// Address is where Postgres is, and who logs in: a URL, or key=value words. It is read again for each new connection,
// with what libpq's variables name (PGPASSFILE, PGSERVICEFILE, certificates): all of them may change meanwhile.
type Address struct{ secret.Text }

// AddressOf returns the address in a URL, or, if file is not "", in that file.
func AddressOf(url, file string) Address { return Address{secret.Text{Value: url, File: file}} }

// Config reads the address. The caller may change what it returns. No error quotes the address.
func (a Address) Config() (*pgconn.Config, error) {
	_, config, err := a.read()
	return config, err
}

// Valid reads the address and returns its text, for another parser, if it has no mistake.
func (a Address) Valid() (string, error) {
	text, _, err := a.read()
	return text, err
}

func (a Address) read() (string, *pgconn.Config, error) {
	text, err := a.Read()
	if err != nil {
		return "", nil, err
	}
	config, err := Parse(text)
	if err != nil {
		err = a.Wrong(err)
	}
	return text, config, err
}

const (
	urlForm = "not a URL of the form postgres://user:password@host:5432/database"
	wantURL = urlForm + "; " + secret.Encode
)

// Parse reads a URL or key=value words. Its errors never quote them: what a parser takes for a port may be a part of
// the password.
func Parse(text string) (*pgconn.Config, error) {
	if text = strings.TrimSpace(text); text == "" {
		return nil, secret.ErrEmpty
	}
	if err := checkForm(text); err != nil {
		return nil, err
	}
	if secret.AtAfterHost(text) {
		return nil, errors.New(wantURL)
	}
	config, err := pgconn.ParseConfig(text) // pgx would take parameters of its own out
	var parseErr *pgconn.ParseConfigError
	var urlErr *url.Error
	switch {
	case err == nil && strings.Contains(text, "://") && strings.LastIndex(config.Host, "@") > 0:
		// A password contains an @ that is not encoded: the parser took its end for the host.
		return nil, errors.New(wantURL)
	case err == nil:
		return config, checkParameters(config)
	case errors.As(err, &urlErr) || strings.Contains(text, "://"):
		if detail := harmlessDetail(err); detail != "" {
			return nil, errors.New(detail)
		}
		return nil, errors.New(wantURL)
	case errors.As(err, &parseErr):
		return nil, errNoURL
	}
	return nil, errors.New("not understood")
}

// word is the begin of key=value words. A name with other characters is a part of a URL.
var word = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*\s*=`)

// checkForm rejects URLs that pgconn takes for key=value words, and control characters, which it takes for a part of
// the database's name.
func checkForm(text string) error {
	scheme, _, isURL := strings.Cut(text, "://")
	switch {
	case word.MatchString(text):
		return nil
	case strings.HasPrefix(text, "jdbc:postgresql:"):
		return errors.New(urlForm + ", without jdbc:, and with user and password before the host")
	case strings.HasPrefix(text, "jdbc:"):
		return checkForm(text[len("jdbc:"):])
	case isURL && strings.HasPrefix(scheme, "postgres") && strings.Contains(scheme, "+"):
		return errors.New(urlForm + ", without + and a driver")
	case isURL && scheme != "postgres" && scheme != "postgresql":
		return otherScheme(secret.Scheme(text))
	case !isURL && strings.Contains(text, "="):
		return errNoURL
	}
	return secret.CheckPrintable(text)
}

// otherScheme says what another URL than that of Postgres is.
func otherScheme(scheme string) error {
	const want = "want a URL that begins with postgres:// or postgresql://"
	switch lower := strings.ToLower(scheme); {
	case scheme == "":
		return errors.New(want)
	case strings.Contains(lower, "amqp") || strings.Contains(lower, "rabbitmq"):
		return errors.New(want + "; a URL of RabbitMQ goes into --amqp-url (CDC_RELAY_AMQP_URL)")
	case strings.HasPrefix(lower, "p") || strings.HasPrefix(lower, "timescale"):
		return errors.New(want + ": write postgres:// in place of " + scheme)
	case strings.HasPrefix(lower, "http"):
		return errors.New(want + ": cdc-relay speaks to Postgres itself, as a rule at port 5432, and not by " + scheme)
	}
	return errors.New(want + ": the outbox is in Postgres, and " + scheme + " is another server")
}

var errNoURL = errors.New("neither a URL, postgres://user:password@host:5432/database, nor key=value words")

// harmlessDetail names the parameter that a parser rejected, if it cannot contain a password. The error of pgconn
// quotes the URL before it says what is wrong.
func harmlessDetail(err error) string {
	text := err.Error()
	text = text[strings.LastIndex(text, "`: ")+1:]
	for _, part := range [][2]string{
		{"CA file", "sslrootcert"},
		{"CA to cert pool", "sslrootcert"},
		{"sslrootcert", "sslrootcert"},
		{"sslkey", "sslkey"},
		{"cert", "sslcert"},
		{"sslmode", "sslmode"},
		{"target_session_attrs", "target_session_attrs"},
		{"connect_timeout", "connect_timeout"},
	} {
		if strings.Contains(text, part[0]) {
			return "wrong value for " + part[1]
		}
	}
	return ""
}

// Hint returns what fixes an error of the server at this address, or "".
func (a Address) Hint(err error) string {
	return cmp.Or(a.Grant(err), problem.Hint(err), Hint(err))
}

// Grant returns the GRANT for the role of this address if it may not read an object of the system catalog, or "".
func (a Address) Grant(err error) string {
	config, wrong := a.Config()
	if wrong != nil {
		return ""
	}
	return problem.Grant(err, config.User)
}

// WithOrigin adds to the text of an error of which file the password is that Postgres rejected, when the file was
// written, and whether the server knows another form of it: pgconn does not replace characters as SASLprep does.
func (a Address) WithOrigin(text string, err error) string {
	if origin := a.origin(err); origin != "" {
		text += "; " + origin
	}
	config, parseErr := a.Config()
	if pgcode.Is(err, pgerrcode.InvalidPassword) && parseErr == nil && !norm.NFKC.IsNormalString(config.Password) {
		text += "; SCRAM replaces some of its characters, as ½ by 1⁄2: write the replaced form (NFKC)"
	}
	return text
}

// origin returns "" if the error is another one, or the password is of no file.
func (a Address) origin(err error) string {
	if !pgcode.Is(err, pgerrcode.InvalidPassword) && !pgcode.Is(err, pgerrcode.InvalidAuthorizationSpecification) {
		return ""
	}
	if a.File != "" {
		return a.Origin()
	}
	config, parseErr := a.Config()
	if parseErr != nil || config.Password == "" || a.hasPassword() || os.Getenv("PGPASSWORD") != "" {
		return ""
	}
	return secret.Origin(passwordFile())
}

// hasPassword reports whether the address names a password, or a password file of its own.
func (a Address) hasPassword() bool {
	if u, err := url.Parse(a.Value); err == nil && u.User != nil {
		if _, has := u.User.Password(); has {
			return true
		}
	}
	return strings.Contains(a.Value, "password=") || strings.Contains(a.Value, "passfile=")
}

// passwordFile is where libpq and pgconn look for passwords.
func passwordFile() string {
	if file := os.Getenv("PGPASSFILE"); file != "" {
		return file
	}
	home, _ := os.UserHomeDir()
	return filepath.Join(home, ".pgpass")
}

// serverParameters are the server's settings that an address may contain, besides those with a dot in their name.
// Any other goes into options.
const serverParameters = " application_name options search_path client_encoding datestyle intervalstyle timezone " +
	"statement_timeout lock_timeout idle_in_transaction_session_timeout idle_session_timeout transaction_timeout " +
	"tcp_keepalives_idle tcp_keepalives_interval tcp_keepalives_count tcp_user_timeout " +
	"role work_mem jit synchronous_commit default_transaction_isolation default_transaction_read_only "

// checkParameters returns an error for the first parameter of an address that a relay cannot use. pgconn passes each
// parameter that it does not know to the server, which then rejects every login. Some are of libpq or of a connection
// pool, and others are typing errors.
func checkParameters(config *pgconn.Config) error {
	for _, name := range slices.Sorted(maps.Keys(config.RuntimeParams)) {
		lower := strings.ToLower(name)
		switch {
		case strings.Contains(name, ".") || strings.Contains(serverParameters, " "+lower+" "):
		case strings.HasPrefix(lower, "pool_"):
			return fmt.Errorf("parameter %s is not supported: leave it out, the pool has a fixed size", name)
		case strings.HasPrefix(lower, "keepalives") || lower == "gssencmode" || lower == "hostaddr" ||
			lower == "load_balance_hosts" || lower == "fallback_application_name" || lower == "replication":
			return fmt.Errorf("parameter %s is not supported: leave it out", name)
		default:
			return fmt.Errorf("parameter %s is unknown; a setting of the server goes into options: "+
				"options=-c%%20%s%%3DVALUE in a URL", name, name)
		}
	}
	return nil
}
