import os
channel = os.dup(0)
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, 0)
os.close(null)
def take(length):
    taken = b""
    while len(taken) < length:
        piece = os.read(channel, length - len(taken))
        if not piece:
            os._exit(0)
        taken += piece
    return taken
line = b""
while not line.endswith(b"\n"):
    line += take(1)
source = take(int(line.split()[1]))
exec(compile(source, "<context>", "exec"), {"__name__": "cubicle_context", "channel_fd": channel})
