"""Posting to a receiver that means no good: its time is limited as a whole."""

import socket
import threading

import pytest

from core.ports import RetryableError
from telemetry.alerts import webhook


def test_receiver_is_hung_up_on_when_its_answer_drips_without_end():
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip():
            there, _ = server.accept()
            with there:
                there.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
                while not over.wait(0.01):
                    try:
                        there.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        to = webhook.target(f"http://127.0.0.1:{server.getsockname()[1]}/", private=True)
        try:
            with pytest.raises(RetryableError, match=r"127\.0\.0\.1 did not answer within"):
                webhook.post(to, None, b"{}", {}, timeout_s=0.2)
        finally:
            over.set()
            thread.join()
