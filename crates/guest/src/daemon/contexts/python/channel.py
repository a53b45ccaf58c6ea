

# The socket to the daemon.

class Channel:
    """The socket to the daemon. A process that was forked by user code must not speak on it."""

    def __init__(self, fd):
        self.fd = fd
        self.pid = os.getpid()
        self.inbox = b""
        self.acks = 0
        self.lock = threading.RLock()
        self.is_sending = False

    def is_mine(self):
        return os.getpid() == self.pid

    def _fill(self):
        piece = os.read(self.fd, 65536)
        if not piece:
            # The daemon has given this context up.
            leave(0)
        self.inbox += piece

    def _line(self):
        while b"\n" not in self.inbox:
            self._fill()
        line, _, self.inbox = self.inbox.partition(b"\n")
        return line.split()

    def next_cell(self):
        while True:
            words = self._line()
            if words[0] == b"cell":
                break
        count, length = int(words[1]), int(words[2])
        if len(self.inbox) < length:
            pieces, have = [self.inbox], len(self.inbox)
            while have < length:
                piece = os.read(self.fd, min(1 << 20, length - have))
                if not piece:
                    leave(0)
                pieces.append(piece)
                have += len(piece)
            self.inbox = b"".join(pieces)
        code, self.inbox = self.inbox[:length], self.inbox[length:]
        if words[3] == b"1":
            # An interrupt of the cell before may have come too late for it. It was handled before this was read.
            runner.is_interrupted = False
        return count, code.decode("utf-8", "replace")

    def has_more(self):
        """Whether a cell was sent that was not taken yet."""
        return bool(self.inbox) or bool(select.select([self.fd], [], [], 0)[0])

    def send(self, events):
        if not self.is_mine():
            return
        message = b"".join(framed(event) for event in events)
        is_main = threading.current_thread() is threading.main_thread()
        with self.lock:
            # An interrupt waits, because half a message would be the end of the context.
            self.is_sending = self.is_sending or is_main
            try:
                view = memoryview(message)
                while view:
                    view = view[os.write(self.fd, view) :]
            finally:
                if is_main:
                    self.is_sending = False
        if is_main and runner.is_running and runner.is_interrupted:
            runner.is_interrupted = False
            raise KeyboardInterrupt

    def send_and_wait(self, event):
        """What is printed after this returns stands behind the event in the journal."""
        if not self.is_mine():
            return
        flush()
        waits = runner.is_running and threading.current_thread() is threading.main_thread()
        if waits:
            self.acks += 1
            event["ack"] = self.acks
        self.send([event])
        while waits:
            words = self._line()
            if words[0] == b"ack" and int(words[1]) == self.acks:
                return


# The end of most cells, which is not put into words each time.
SUCCESS = {"event": "end", "status": "success"}
FRAMED_SUCCESS = b'34\n{"event":"end","status":"success"}'


def framed(event):
    if event is SUCCESS:
        return FRAMED_SUCCESS
    data = encoded(event)
    if len(data) > LONGEST_EVENT:
        data = encoded(shortened(event, len(data)))
    return b"%d\n%s" % (len(data), data)


ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encoded(event):
    try:
        return ENCODER.encode(event).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(printable(event), ensure_ascii=False, allow_nan=False).encode("utf-8")


def printable(value):
    """The same with every lone surrogate written out, which JSON has no form for."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {printable(str(key)): printable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [printable(item) for item in value]
    return value


def shortened(event, length):
    """Without what is too long for an event, and with a word about it."""
    kept, left_out = {}, []
    for media, value in sorted(event.get("data", {}).items(), key=lambda item: len(encoded(item[1]))):
        if len(encoded(kept)) + len(encoded(value)) < LONGEST_EVENT - 65536:
            kept[media] = value
        else:
            left_out.append(media)
    note = "[%s left out: %d bytes are more than an event can have; write it to a file]" % (", ".join(left_out), length)
    kept["text/plain"] = (str(kept.get("text/plain", "")) + "\n" + note).strip()
    return {**event, "data": kept}


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def leave(code):
    """Ends the process as an interpreter ends."""
    flush()
    raise SystemExit(code)
