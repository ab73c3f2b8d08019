// Package certs creates certificates for tests.
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority is the private CA of one test. Every user can read its files, because servers run as other users.
type Authority struct {
	t           *testing.T
	folder      string
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	serial      int64
}

// NewAuthority creates a CA; ca.pem is its certificate.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	a := &Authority{t: t, folder: t.TempDir()}
	for _, folder := range []string{a.folder, filepath.Dir(a.folder)} {
		if err := os.Chmod(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	a.key = a.newKey()
	a.certificate = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a private CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.sign("ca", a.certificate, a.key)
	return a
}

func (a *Authority) newKey() *ecdsa.PrivateKey {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

// Issue writes a certificate and its key, NAME.pem and NAME.key, for a server of that name or for a client. It is valid
// for an hour.
func (a *Authority) Issue(name string) {
	a.t.Helper()
	a.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1 + a.serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: a.certificate.NotBefore, NotAfter: a.certificate.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	a.sign(name, template, a.newKey())
}

func (a *Authority) sign(name string, template *x509.Certificate, key *ecdsa.PrivateKey) {
	a.t.Helper()
	content, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", content)
	a.write(name+".key", "PRIVATE KEY", secret)
}

func (a *Authority) write(name, kind string, content []byte) {
	a.t.Helper()
	encoded := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content})
	if err := os.WriteFile(a.File(name), encoded, 0o644); err != nil {
		a.t.Fatal(err)
	}
}

// File returns the path of a file.
func (a *Authority) File(name string) string { return filepath.Join(a.folder, name) }
