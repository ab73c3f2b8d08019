package publish

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

// NotAMQPError tells that the host takes connections, and hangs up at the first bytes or answers in another protocol.
type NotAMQPError struct {
	Address string
	Err     error
}

func (e *NotAMQPError) Error() string {
	reason := e.Err.Error()
	var exception *amqp.Error
	if errors.As(e.Err, &exception) {
		reason = exception.Reason
	}
	return fmt.Sprintf("%s takes connections, but does not speak AMQP: %s", e.Address, reason)
}

func (e *NotAMQPError) Unwrap() error { return e.Err }

// Hint says what to look at.
func (e *NotAMQPError) Hint() string {
	return "check the port in --amqp-url (CDC_RELAY_AMQP_URL): for amqp:// it is 5672 as a rule, for amqps:// 5671; 15672 is the management API"
}

// Undialled says more of an error of amqp.DialConfig: a *NotAMQPError, or the error itself. With TLS the handshake has
// told the port.
func Undialled(scheme, address string, err error) error {
	var exception *amqp.Error // 501 of this side is what reading from the network said, ErrClosed comes where writing was quicker
	if scheme != "amqp" || !errors.As(err, &exception) || exception.Server || strings.Contains(exception.Reason, "timeout") ||
		exception.Code != amqp.FrameError && !errors.Is(err, amqp.ErrClosed) {
		return err
	}
	return &NotAMQPError{address, err}
}
