//! The least that an HTTP server can do: it answers every request with the same few bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use cubicle_model::Fault;

use crate::bench::served::broken;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

/// Ends with the process that measures.
#[derive(Debug)]
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
}

impl Echo {
    pub(crate) fn start() -> Result<Self, Fault> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(broken)?;
        let address = listener.local_addr().map_err(broken)?;
        std::thread::Builder::new()
            .name("echo".into())
            .spawn(move || {
                while let Ok((stream, _)) = listener.accept() {
                    // A client that left needs no answer.
                    let _ = serve(stream);
                }
            })
            .map_err(broken)?;
        Ok(Self { address })
    }
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut received = vec![0; 64 * 1024];
    // Requests come one at a time, and each fits into one read on loopback.
    while stream.read(&mut received)? > 0 {
        stream.write_all(ANSWER)?;
    }
    Ok(())
}
