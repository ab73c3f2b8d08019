package services

import (
	"context"
	"net"
	"testing"
)

// resolve gives every name without a line in the hosts file these IPv4 addresses, in this process and until the test
// ends. So the test must not run in parallel with others.
func resolve(t testing.TB, addresses ...string) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	Must(t, err)
	go answerQuestions(server, addresses)
	usual := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = usual
		_ = server.Close()
	})
}

// answerQuestions is a name server (RFC 1035) until the connection is closed.
func answerQuestions(server net.PacketConn, addresses []string) {
	const header, typeA = 12, 1
	query := make([]byte, 1<<10)
	for {
		n, from, err := server.ReadFrom(query)
		if err != nil {
			return
		}
		end := header
		for end < n && query[end] != 0 { // the labels of the name
			end += 1 + int(query[end])
		}
		end += 5 // the last label, type and class
		if end > n {
			continue
		}
		answer := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, query[header:end]...)
		if query[end-3] == typeA {
			answer[7] = byte(len(addresses))
			for _, address := range addresses {
				answer = append(answer, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 60, 0, 4)
				answer = append(answer, net.ParseIP(address).To4()...)
			}
		}
		_, _ = server.WriteTo(answer, from)
	}
}
