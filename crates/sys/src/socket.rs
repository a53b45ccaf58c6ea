//! Descriptors that travel with bytes over a Unix stream.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// As many descriptors as go with one message.
pub const MOST_DESCRIPTORS: usize = 16;

/// Sends bytes with one descriptor, which arrives with the first of them. Returns how many bytes went.
pub fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<usize> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and the descriptor that came with them, if one did. Zero bytes: the other side closed.
pub fn receive_with(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut ancillary, flags)?;
    let mut descriptor = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            // Descriptors beyond the first are closed here.
            descriptor = descriptors.into_iter().next();
        }
    }
    Ok((received.bytes, descriptor))
}

/// Receives bytes with the pid of whoever sent them, as the kernel saw it. The socket must ask for credentials.
pub fn receive_from_process(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<(usize, Option<i32>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut ancillary, flags)?;
    let mut pid = None;
    for message in ancillary.drain() {
        // Descriptors that nobody asked for are closed here.
        if let RecvAncillaryMessage::ScmCredentials(credentials) = message {
            pid = Some(credentials.pid.as_raw_nonzero().get());
        }
    }
    Ok((received.bytes, pid))
}

/// Sends bytes with descriptors, which arrive with the first of them, all together. Returns how many bytes went.
pub fn send_with_all(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if descriptors.len() > MOST_DESCRIPTORS || !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and adds the descriptors that came with them. Zero bytes: the other side closed.
pub fn receive_with_all(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(into)], &mut ancillary, flags)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > MOST_DESCRIPTORS {
        descriptors.clear();
        return Err(io::Error::new(io::ErrorKind::InvalidData, "more descriptors came than are taken"));
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_arrive_together_and_too_many_are_not_taken() {
        let (one, other) = UnixStream::pair().unwrap();
        let some = vec![one.as_fd(); MOST_DESCRIPTORS];
        assert_eq!(send_with_all(one.as_fd(), b"abc", &some).unwrap(), 3);
        let (mut bytes, mut descriptors) = ([0; 8], Vec::new());
        assert_eq!(receive_with_all(other.as_fd(), &mut bytes, &mut descriptors).unwrap(), 3);
        assert_eq!(descriptors.len(), MOST_DESCRIPTORS);
        send_with_all(one.as_fd(), b"d", &some[..1]).unwrap();
        let refused = receive_with_all(other.as_fd(), &mut bytes, &mut descriptors).unwrap_err();
        assert_eq!((refused.kind(), descriptors.len()), (io::ErrorKind::InvalidData, 0));
        let too_many = vec![one.as_fd(); MOST_DESCRIPTORS + 1];
        assert!(send_with_all(one.as_fd(), b"abc", &too_many).is_err());
    }
}
