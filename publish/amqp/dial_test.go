package amqp

import (
	"strings"
	"testing"
)

func TestURLErrorsHaveNoPassword(t *testing.T) {
	for _, url := range []string{
		"amqp://user:pa ss@host/", "amqp://user:hidden/word@host/", "amqp://user:12/hidden@host/", "amqp://user:hidden%zz@host/",
		"amqp://user:hidden#x@host/", "http://user:hidden@host/", "amqp://user:hidden@host:notaport/", "",
	} {
		_, err := New(Config{URL: url})
		if err == nil {
			t.Errorf("%s is accepted", url)
			continue
		}
		for _, part := range []string{"hidden", "pa ss"} {
			if strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error quotes the password: %v", url, err)
			}
		}
	}
	for _, url := range []string{
		"amqp://localhost", "amqps://u:p%40ss@host:5671/v%2Fhost", "amqp://u@host/a@host", "amqp://[::1]:5672/", "amqp://u:p@[::1]/v@x",
	} {
		if _, err := New(Config{URL: url}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}
