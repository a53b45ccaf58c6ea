//! A way to the origin, and what a client does on it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};

use super::origin::{BULK, MESSAGE};

/// Nothing on loopback takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that does not outlive the measuring.
#[derive(Debug)]
pub(super) struct Process(pub(super) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended needs neither.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// How a client gets to the origin.
#[derive(Debug, Clone)]
pub(super) struct Way {
    pub(super) name: &'static str,
    entry: SocketAddr,
    /// What a proxy has to be asked for first.
    head: Option<String>,
}

impl Way {
    /// The origin itself, or what only copies bytes to it.
    pub(super) fn plain(name: &'static str, entry: SocketAddr) -> Self {
        Self { name, entry, head: None }
    }

    pub(super) fn proxy(name: &'static str, entry: SocketAddr, origin: SocketAddr) -> Self {
        let head = format!("CONNECT {origin} HTTP/1.1\r\nHost: {origin}\r\n\r\n");
        Self { name, entry, head: Some(head) }
    }

    /// A connection to the origin on which the first request was answered.
    pub(super) fn connect(&self) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.entry)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        if let Some(head) = &self.head {
            stream.write_all(head.as_bytes())?;
            let mut answer = [0; 2048];
            let mut length = 0;
            while !answer[..length].ends_with(b"\r\n\r\n") {
                match stream.read(&mut answer[length..])? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    read => length += read,
                }
            }
            if answer.get(8..13) != Some(b" 200 ") {
                return Err(io::Error::other(String::from_utf8_lossy(&answer[..length]).into_owned()));
            }
        }
        // As TLS begins, which is what goes through tunnels.
        stream.write_all(&hello())?;
        stream.read_exact(&mut [0; MESSAGE])?;
        Ok(stream)
    }

    /// From nothing to the first answer, and the mean of requests that follow on the same connection.
    pub(super) fn visit(&self, more: u32) -> io::Result<(Duration, Duration)> {
        let from = Instant::now();
        let mut stream = self.connect()?;
        let first = from.elapsed();
        let from = Instant::now();
        for _ in 0..more {
            stream.write_all(&[b'r'; MESSAGE])?;
            stream.read_exact(&mut [0; MESSAGE])?;
        }
        Ok((first, from.elapsed() / more.max(1)))
    }

    /// Bytes from the origin, on a connection that was made before. They are counted where they are and not copied to the
    /// client, so that it is the way that is measured.
    pub(super) fn fetch(stream: &mut TcpStream, bytes: u64) -> io::Result<Duration> {
        const MOST: usize = 1 << 20;
        let mut scrap = vec![0_u8; MOST];
        let mut request = [0; MESSAGE];
        request[0] = BULK;
        request[1..9].copy_from_slice(&bytes.to_be_bytes());
        let from = Instant::now();
        stream.write_all(&request)?;
        let mut left = bytes;
        while left > 0 {
            match recv(&*stream, &mut scrap[..], RecvFlags::TRUNC)?.1 {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => left = left.saturating_sub(read as u64),
            }
        }
        Ok(from.elapsed())
    }
}

/// The first message of a TLS client that asks for no name, as the origin has only an address.
fn hello() -> Vec<u8> {
    let extension =
        |kind: u16, body: &[u8]| [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), body].concat();
    let key_share = [&[0, 36, 0, 29, 0, 32][..], &[7; 32]].concat();
    let extensions = [
        extension(43, &[2, 3, 4]),
        extension(10, &[0, 2, 0, 29]),
        extension(13, &[0, 4, 4, 3, 8, 4]),
        extension(51, &key_share),
    ]
    .concat();
    let body = [
        &[3, 3][..],
        &[9; 32],
        &[0],
        &[0, 4, 0x13, 0x01, 0x13, 0x02],
        &[1, 0],
        &(extensions.len() as u16).to_be_bytes(),
        &extensions,
    ]
    .concat();
    let handshake = [&[1, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat();
    [&[0x16, 3, 1][..], &(handshake.len() as u16).to_be_bytes(), &handshake].concat()
}
