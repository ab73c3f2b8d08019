package amqpdial

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"regexp"
	"strconv"
	"strings"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/cdc-relay/cdc-relay/internal/problem"
)

// DialError tells why there is no connection to RabbitMQ, and what fixes it.
type DialError struct {
	// Part is what to look at: "reachable", "login" or "vhost".
	Part string
	// Err is the error of the AMQP library.
	Err error

	text, hint string
}

func (e *DialError) Error() string { return e.text }
func (e *DialError) Unwrap() error { return e.Err }

// Hint returns a shell command, or a remark after a #.
func (e *DialError) Hint() string { return e.hint }

const (
	inURL           = "in --amqp-url (CDC_RELAY_AMQP_URL)"
	certificateHint = "# if RabbitMQ asks for a certificate: ?certfile=FILE&keyfile=FILE " + inURL +
		", of an authority that it trusts; its log says more"
)

// Undialled explains an error of amqp091.DialConfig. The text contains no password.
func Undialled(uri amqp091.URI, err error) *DialError {
	address := net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	fail := func(part, hint, format string, args ...any) *DialError {
		return &DialError{Part: part, Err: err, text: fmt.Sprintf(format, args...), hint: hint}
	}
	const ports = "check the port " + inURL +
		": for amqp:// it is 5672 as a rule, for amqps:// 5671; 15672 is the management API"
	var exception *amqp091.Error
	// ErrClosed means that a write failed before the first read.
	if !errors.As(err, &exception) || FromNetwork(exception) || errors.Is(err, amqp091.ErrClosed) {
		switch {
		case uri.Scheme != "amqp" || exception == nil || strings.Contains(exception.Reason, "timeout"):
			// With TLS, the handshake has proved the port.
		case strings.HasPrefix(exception.Reason, "Exception ("):
			// It is not of the network: something was read, and was not a frame.
			return fail("reachable", "# "+ports, "%s accepts connections, but does not speak AMQP", address)
		default:
			hint := "# RabbitMQ may be starting or stopping there, or a proxy there cannot reach it; else " + ports
			return fail("reachable", hint, "%s accepted the connection, but ended it before RabbitMQ answered: %s",
				address, networkReason(exception.Reason))
		}
		hint := reachHint(uri, err)
		text := networkText(err)
		if hint == certificateHint {
			text += "; RabbitMQ may ask for a client certificate"
		}
		return fail("reachable", hint, "RabbitMQ at %s: %s", address, text)
	}
	user, vhost := problem.ShellWord(uri.Username), problem.ShellWord(uri.Vhost)
	permit := fmt.Sprintf("rabbitmqctl set_permissions -p %s %s '' '.*' ''", vhost, user)
	_, reason, found := strings.Cut(exception.Reason, " - ")
	if !found {
		reason = exception.Reason
	}
	switch state := StateHint(reason, uri.Username, uri.Vhost); {
	case exception.Code == amqp091.AccessRefused && strings.Contains(reason, "localhost"):
		hint := "rabbitmqctl add_user relay && " + strings.Replace(permit, user, "relay", 1) +
			"  # and use that user " + inURL
		return fail("login", hint, "user %q: %s", uri.Username, reason)
	case exception.Code == amqp091.AccessRefused:
		hint := "rabbitmqctl change_password " + user +
			"  # or add_user, if there is no such user; or correct user and password " + inURL
		return fail("login", hint, "user %q: %s", uri.Username, reason)
	case state != "": // also says "refused"
		return fail("vhost", state, "virtual host %q: %s", uri.Vhost, reason)
	case strings.Contains(reason, "not found") || strings.HasSuffix(reason, "is deleted"):
		hint := "rabbitmqctl add_vhost " + vhost + " && " + permit + "  # or use another " + inURL
		return fail("vhost", hint, "virtual host %q: %s", uri.Vhost, reason)
	case strings.Contains(reason, "refused"):
		return fail("vhost", permit, "virtual host %q: %s", uri.Vhost, reason)
	}
	return fail("reachable", "# see RabbitMQ's log", "RabbitMQ at %s: %s", address, ExceptionText(exception))
}

// StateHint is for a reason that is a limit of the node, the virtual host or the user, or a state in which it takes no
// connections; "": it is another one.
func StateHint(reason, user, vhost string) string {
	const orClose = "  # or raise the limit, or close connections"
	m := regexp.MustCompile(`(user )?(?:connection )?limit (?:of )?\([0-9]+\)`).FindStringSubmatch(reason)
	switch {
	case strings.HasSuffix(reason, "is down"):
		return "rabbitmqctl restart_vhost -p " + problem.ShellWord(vhost) +
			"  # see rabbitmqctl list_vhosts name cluster_state, and RabbitMQ's log"
	case strings.Contains(reason, "maintenance mode"):
		return "rabbitmq-upgrade revive  # on that node, after its maintenance; or add another node " + inURL
	case m == nil:
		return ""
	case strings.Contains(reason, "node connection limit") || strings.Contains(reason, "opened on node"):
		return "# close connections, or raise connection_max or channel_max_per_node in rabbitmq.conf"
	case m[1] != "":
		return "rabbitmqctl clear_user_limits " + problem.ShellWord(user) + " all" + orClose
	}
	return "rabbitmqctl clear_vhost_limits -p " + problem.ShellWord(vhost) + orClose
}

// reachHint is for errors before the broker answers anything.
func reachHint(uri amqp091.URI, err error) string {
	var network *net.OpError
	certificates := problem.TLS{
		Server: "RabbitMQ", InURL: inURL, Authority: "?cacertfile=FILE", Client: "?certfile=FILE&keyfile=FILE",
		Name: "?server_name_indication=NAME", Port: "5671",
	}
	var file *fs.PathError
	switch hint := certificates.Hint(err); {
	case errors.As(err, &file):
		return "# check that this file exists and that the relay may read it"
	case hint != "":
		return hint
	case uri.Scheme == "amqps" && !(errors.As(err, &network) && (network.Op == "dial" || network.Timeout())):
		// With TLS 1.3, a server that wants a client certificate reports it, or disconnects, after the handshake.
		return certificateHint
	}
	return "# check that RabbitMQ runs there, and host and port " + inURL
}

func networkText(err error) string {
	var exception *amqp091.Error
	if errors.As(err, &exception) {
		return networkReason(exception.Reason)
	}
	return networkReason(err.Error())
}

// FromNetwork tells whether the library could not read from the network: it reports that as a 501 of this side.
func FromNetwork(e *amqp091.Error) bool { return e.Code == amqp091.FrameError && !e.Server }

// networkReason leaves out what package net writes before the cause: the text names the address already.
func networkReason(reason string) string {
	if reason == "EOF" {
		return "the other side closed it"
	}
	before := regexp.MustCompile(`^(dial|read|write) tcp[46]?( \S+)?: ((connect|read|write): )?`)
	return before.ReplaceAllString(reason, "")
}

// ExceptionText returns the text of an error of the broker, or of the network below it.
func ExceptionText(e *amqp091.Error) string {
	if FromNetwork(e) {
		return networkReason(e.Reason)
	}
	return fmt.Sprintf("%s (%d)", e.Reason, e.Code)
}

// NoQueue reports whether the answer to a passive declare is that there is no such queue. RabbitMQ answers with the
// same code, and another text, if the queue exists and its node is down.
func NoQueue(e *amqp091.Error) bool {
	return e.Code == amqp091.NotFound && strings.HasPrefix(e.Reason, "NOT_FOUND - no queue '")
}
