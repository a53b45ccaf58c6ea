//! The other side of every tunnel: answers small requests, and sends as much as it is asked for.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request that is not the first one of a connection, and every answer.
pub(super) const MESSAGE: usize = 200;
/// The first byte of a request for as many bytes as follow it.
pub(super) const BULK: u8 = b'b';
const CHUNK: usize = 256 * 1024;

/// Serves from a thread of its own until the program ends.
pub(super) fn start() -> io::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let at = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("origin".into()).spawn(move || {
        runtime.block_on(async {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            while let Ok((stream, _)) = listener.accept().await {
                // A client that hangs up needs no more.
                tokio::spawn(async move { _ = serve(stream).await });
            }
        });
    })?;
    Ok(at)
}

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut request = vec![0; 64 * 1024];
    let chunk = vec![b'x'; CHUNK];
    loop {
        stream.read_exact(&mut request[..5]).await?;
        // The hello of TLS says its length; what comes after it is ours.
        let length = match request[0] {
            0x16 => 5 + usize::from(u16::from_be_bytes([request[3], request[4]])),
            _ => MESSAGE,
        };
        stream.read_exact(&mut request[5..length]).await?;
        if request[0] != BULK {
            stream.write_all(&chunk[..MESSAGE]).await?;
            continue;
        }
        let mut left = u64::from_be_bytes(request[1..9].try_into().unwrap_or_default());
        while left > 0 {
            let piece = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            stream.write_all(&chunk[..piece]).await?;
            left -= piece as u64;
        }
    }
}
