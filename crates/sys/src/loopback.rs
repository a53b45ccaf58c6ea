//! The loopback interface of a new network namespace.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Laid out as `struct ifreq`.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    content: [u8; 24],
}

/// Sets `lo` up in the network namespace of the calling thread.
pub fn up() -> io::Result<()> {
    let mut request = InterfaceRequest { name: name(b"lo"), content: [0; 24] };
    let flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    request.content[..2].copy_from_slice(&flags.to_ne_bytes());
    carry_out(libc::SIOCSIFFLAGS as _, &request)
}

/// Gives `lo` one more address there, beside 127.0.0.1.
pub fn add_address(address: Ipv4Addr) -> io::Result<()> {
    let mut request = InterfaceRequest { name: name(b"lo:1"), content: [0; 24] };
    request.content[..2].copy_from_slice(&(libc::AF_INET as libc::sa_family_t).to_ne_bytes());
    request.content[4..8].copy_from_slice(&address.octets());
    carry_out(libc::SIOCSIFADDR as _, &request)
}

fn name(text: &[u8]) -> [u8; 16] {
    let mut name = [0; 16];
    name[..text.len()].copy_from_slice(text);
    name
}

fn carry_out(what: libc::Ioctl, request: &InterfaceRequest) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: both calls read one `struct ifreq`, which the request is laid out as, and it outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), what, std::ptr::from_ref(request)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
