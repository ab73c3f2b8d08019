package services

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
)

// management is the broker's HTTP API. It creates a virtual host in milliseconds; rabbitmqctl takes seconds.
type management struct {
	URL string `json:"url"` // with user and password
}

func managementAt(host string, port int) management {
	address := url.URL{
		Scheme: "http",
		User:   url.UserPassword("guest", "guest"),
		Host:   net.JoinHostPort(host, strconv.Itoa(port)),
	}
	return management{URL: address.String()}
}

// call sends a body and returns the answer. Its errors name the call. It keeps no connection open: tests would report an
// idle one as a leak.
func (m management) call(ctx context.Context, method string, body any, path ...string) ([]byte, error) {
	if m.URL == "" {
		return nil, errors.New("this broker has no management API that is known here")
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	address := "/api"
	for _, element := range path {
		address += "/" + url.PathEscape(element)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, m.URL+address, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= http.StatusMultipleChoices {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
		return nil, fmt.Errorf("%s %s: %s: %s", method, address, response.Status, text)
	}
	return io.ReadAll(response.Body)
}

func (m management) put(ctx context.Context, body any, path ...string) error {
	_, err := m.call(ctx, http.MethodPut, body, path...)
	return err
}

func (m management) remove(ctx context.Context, path ...string) error {
	_, err := m.call(ctx, http.MethodDelete, nil, path...)
	return err
}
