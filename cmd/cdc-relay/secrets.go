package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/cmd/cdc-relay/internal/show"
	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// fileNames are the files with secrets, which neither a flag nor the environment should show, and with certificates.
type fileNames struct {
	databaseURL, amqpURL      string
	amqpCA, amqpCert, amqpKey string
}

func databaseFileSetting() *setting {
	return &setting{
		name: "database-url-file", value: "FILE",
		usage: "A file with the value of --database-url.",
		set:   func(c *config, text string) error { c.files.databaseURL = text; return nil },
	}
}

func amqpFileSettings() []*setting {
	return []*setting{
		{
			name: "amqp-url-file", value: "FILE",
			usage: "A file with the value of --amqp-url.",
			set:   func(c *config, text string) error { c.files.amqpURL = text; return nil },
		},
		{
			name: "amqp-ca-file", value: "FILE",
			usage: "With amqps://: CA certificates (PEM) to trust instead of the system's.",
			set:   func(c *config, text string) error { c.files.amqpCA = text; return nil },
		},
		{
			name: "amqp-cert-file", value: "FILE",
			usage: "With amqps://: the client certificate (PEM), if RabbitMQ asks for one.",
			set:   func(c *config, text string) error { c.files.amqpCert = text; return nil },
		},
		{
			name: "amqp-key-file", value: "FILE",
			usage: "With amqps://: the key (PEM) of --amqp-cert-file.",
			set:   func(c *config, text string) error { c.files.amqpKey = text; return nil },
		},
	}
}

// withRelated adds the flags that set the same value in another way.
func withRelated(names []string) []string {
	var all []string
	for _, name := range names {
		all = append(all, name)
		switch name {
		case "database-url":
			all = append(all, databaseFileSetting().name)
		case "format":
			all = append(all, jsonSetting().name)
		case "amqp-url":
			for _, s := range amqpFileSettings() {
				all = append(all, s.name)
			}
		}
	}
	return all
}

// readFiles reads the settings that come from files, and returns all mistakes.
func (c *config) readFiles(settings []*setting) error {
	takes := func(name string) bool {
		return slices.ContainsFunc(settings, func(s *setting) bool { return s.name == name })
	}
	var wrong []error
	if takes("database-url") {
		wrong = append(wrong, c.readSecret("database-url", c.files.databaseURL, &c.relay.DatabaseURL, checkDatabaseURL))
	}
	if takes("amqp-url") {
		wrong = append(wrong, c.readSecret("amqp-url", c.files.amqpURL, &c.amqpURL, checkAMQPURL), c.addCertificates())
	}
	return errors.Join(wrong...)
}

// mostSecret limits the size of a secret file: a wrong name must not fill the memory.
const mostSecret = 64 << 10

// readSecret reads the value of a setting from a file. Its errors never quote the content.
func (c *config) readSecret(name, file string, value *string, check func(string) error) error {
	if file == "" {
		return nil
	}
	if *value != "" {
		return usagef("--%s and --%[1]s-file are both given (as a flag, in the environment or in the file of --config), want one", name)
	}
	text, err := readSome(file)
	if err != nil {
		return usagef("--%s-file: %s", name, err)
	}
	*value = strings.TrimRight(string(text), "\r\n")
	if err := check(*value); err != nil {
		return usagef("--%s-file %s: %s", name, file, err)
	}
	c.given[name] = given{*value, fromFile, file}
	return nil
}

func readSome(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostSecret+1))
	if err == nil && len(text) > mostSecret {
		err = fmt.Errorf("%s: is larger than %d bytes", file, mostSecret)
	}
	return text, err
}

// addCertificates puts the names of the files into the AMQP URL. Each connection then reads them again, so a renewed
// certificate is used from the next connection on.
func (c *config) addCertificates() error {
	parameters := []struct{ name, parameter, file string }{
		{"--amqp-ca-file", "cacertfile", c.files.amqpCA},
		{"--amqp-cert-file", "certfile", c.files.amqpCert},
		{"--amqp-key-file", "keyfile", c.files.amqpKey},
	}
	if checkAMQPURL(c.amqpURL) != nil || c.files.amqpCA+c.files.amqpCert+c.files.amqpKey == "" {
		return nil
	}
	u, err := url.Parse(c.amqpURL)
	if err != nil {
		return usagef("--amqp-url: not understood") // validated before
	}
	query := u.Query()
	for _, p := range parameters {
		switch {
		case p.file == "":
		case u.Scheme != "amqps":
			return usagef("%s needs a URL that begins with amqps:// in --amqp-url", p.name)
		case query.Has(p.parameter):
			return usagef("%s and %s in --amqp-url are both given, want one", p.name, p.parameter)
		default:
			query.Set(p.parameter, p.file)
		}
	}
	if err := checkCertificates(query.Get("cacertfile"), query.Get("certfile"), query.Get("keyfile")); err != nil {
		return err
	}
	u.RawQuery = query.Encode()
	c.amqpURL = u.String()
	return nil
}

// checkCertificates reports at the start what would otherwise fail at each connection.
func checkCertificates(ca, cert, key string) error {
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(bytes.TrimSpace(text)) {
			err = fmt.Errorf("%s: holds no certificate in PEM form", ca)
		}
		if err != nil {
			return usagef("--amqp-ca-file: %s", err)
		}
	}
	if (cert == "") != (key == "") {
		return usagef("--amqp-cert-file and --amqp-key-file: want both or none")
	}
	if cert == "" {
		return nil
	}
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		return usagef("--amqp-cert-file %s, --amqp-key-file %s: %s", cert, key, err)
	}
	return nil
}

// warnOfModes warns of files with passwords that every user of the machine can read or change. A configuration file
// decides where messages go, so nobody else may change it, but it need not contain a password.
func (p *process) warnOfModes(warn warning, configFile string, cfg *config) {
	if os.Getpid() == 1 { // in a container there are no other users, and its secrets are often readable by all
		return
	}
	secrets := []string{cfg.files.databaseURL, cfg.files.amqpURL, cfg.files.amqpKey, cfg.console.tokenFile}
	for _, name := range []string{"PGPASSFILE", "PGSSLKEY"} {
		file, _ := p.lookupEnv(name)
		secrets = append(secrets, file)
	}
	const readable, writable = 0o004, 0o002
	for _, file := range append(secrets, configFile) {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			advice := "chmod 600 " + problem.ShellWord(file)
			switch mode := info.Mode().Perm(); {
			case mode&writable != 0:
				warn("every user of this machine may change "+show.Printable(file), advice)
			case mode&readable != 0 && (file != configFile || hasPassword(file)):
				warn("every user of this machine may read "+show.Printable(file), advice)
			}
		}
	}
}

// hasPassword reports whether a file contains a URL with a password.
func hasPassword(file string) bool {
	text, err := os.ReadFile(file)
	return err == nil && !bytes.Equal(show.Redact(text), text)
}
