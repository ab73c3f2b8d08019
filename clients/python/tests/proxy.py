"""A TCP proxy before RabbitMQ that a test stops and starts again."""
import socket
import threading


class Proxy:
    def __init__(self, host, port):
        self.target, self.open, self.listener = (host, port), set(), None
        self.address = ("127.0.0.1", 0)
        self.start()

    def start(self):
        self.listener = socket.create_server(self.address)
        self.address = self.listener.getsockname()
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def stop(self):
        """Cuts all connections, and refuses new ones."""
        for one in [self.listener, *self.open]:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other side was first
            one.close()
        self.open.clear()

    def _accept(self, listener):
        while True:
            try:
                here = listener.accept()[0]
            except OSError:
                return
            there = socket.create_connection(self.target)
            self.open |= {here, there}
            for a, b in (here, there), (there, here):
                threading.Thread(target=self._copy, args=(a, b), daemon=True).start()

    def _copy(self, a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # cut
