//! Messages between the launcher, its caller and its embryos: one packet each, a JSON head, an opaque body, and
//! descriptors beside it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use cubicle_model::receipt::{LimitInForce, MountSeen};
use cubicle_model::{Lifetime, SandboxId};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Failed;
use crate::plan::{CgroupLimits, Furnishing, HostFacts, TemplatePlan};

/// The largest packet. Environments and labels count; files do not, they go to the guest.
pub const LARGEST_PACKET: usize = 160 * 1024;
const MOST_DESCRIPTORS: usize = 8;

/// From the caller. Every request has a tag that its reply repeats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The first one. Comes with the data directory and the read end of the caller's lifeline.
    Start(Start),
    /// Builds a root unless there is one of that name.
    Template {
        tag: u64,
        name: String,
        plan: TemplatePlan,
    },
    /// The body is a `SandboxPlan` and its key; the launcher hands it on without looking into it.
    Create {
        tag: u64,
        id: SandboxId,
        furnishing: Furnishing,
        lifetime: Lifetime,
        workspace: Option<PathBuf>,
    },
    Bind {
        tag: u64,
        id: SandboxId,
        limits: CgroupLimits,
        mounts: Vec<cubicle_model::Mount>,
    },
    Destroy {
        tag: u64,
        id: SandboxId,
    },
    Sweep {
        tag: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub instance: cubicle_model::InstanceId,
    /// How many embryos wait for the next request.
    pub nursery: usize,
    /// Whether an embryo that left is followed by another one. Not where one sandbox is all that is wanted.
    pub refill: bool,
    /// Directories whose contents may be mounted into sandboxes. Fixed before the caller gives up its rights.
    pub mountable: Vec<PathBuf>,
    /// Where the data directory is, for mounting only.
    pub data_directory: PathBuf,
}

/// To the caller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Started(HostFacts),
    Done {
        tag: u64,
    },
    /// The body is the receipt.
    Created {
        tag: u64,
    },
    Bound {
        tag: u64,
        limits: Vec<LimitInForce>,
        mounts: Vec<MountSeen>,
    },
    Swept {
        tag: u64,
        sandboxes: usize,
        cgroups: usize,
        directories: usize,
    },
    Failed {
        tag: u64,
        error: Failed,
    },
}

/// What an embryo tells the launcher, and pid 1 after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromCradle {
    /// Waiting in the cgroup. Comes with the user namespace.
    Prepared,
    /// pid 1 is furnished and confined. Comes with a descriptor of its mounts where the launcher could not find them
    /// later. The body is its receipt; what it contradicts is said here, too, because the launcher only hands the
    /// receipt on.
    Ready {
        contradictions: Vec<String>,
    },
    Failed {
        error: Failed,
    },
}

/// One end of a `SOCK_SEQPACKET` pair, in whatever owns the socket.
#[derive(Debug)]
pub struct Channel<S = OwnedFd>(S);

/// A packet with what came beside it.
#[derive(Debug)]
pub struct Packet {
    bytes: Vec<u8>,
    head: usize,
    pub descriptors: Vec<OwnedFd>,
}

impl Packet {
    pub fn head<T: DeserializeOwned>(&self) -> io::Result<T> {
        serde_json::from_slice(&self.bytes[4..4 + self.head]).map_err(io::Error::from)
    }

    pub fn body(&self) -> &[u8] {
        &self.bytes[4 + self.head..]
    }
}

impl Drop for Packet {
    /// Bodies carry keys; what is forked later must not find them in its memory.
    fn drop(&mut self) {
        self.bytes.fill(0);
        std::hint::black_box(&self.bytes);
    }
}

impl Channel {
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(one), Self(other)))
    }
}

impl<S: AsFd> Channel<S> {
    pub fn new(socket: S) -> Self {
        Self(socket)
    }

    pub fn socket(&self) -> &S {
        &self.0
    }

    pub fn send(&self, head: &impl Serialize, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let head = serde_json::to_vec(head)?;
        if 4 + head.len() + body.len() > LARGEST_PACKET {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let length = (head.len() as u32).to_le_bytes();
        let parts = [IoSlice::new(&length), IoSlice::new(&head), IoSlice::new(body)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            beside.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        sendmsg(&self.0, &parts, &mut beside, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next packet, or `None` when the other end is gone.
    pub fn receive(&self) -> io::Result<Option<Packet>> {
        // Asking for the length first keeps the buffer as small as the packet; an idle process holds none at all.
        let (_, length) = recv(&self.0, &mut [0u8; 0], RecvFlags::PEEK | RecvFlags::TRUNC)?;
        let mut bytes = vec![0; length.min(LARGEST_PACKET)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut beside, RecvFlags::CMSG_CLOEXEC)?;
        let descriptors = beside
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        if received.bytes == 0 {
            return Ok(None);
        }
        let cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        let head = bytes.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length) as usize);
        if cut || received.bytes < 4 || head > received.bytes - 4 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet was cut"));
        }
        bytes.truncate(received.bytes);
        Ok(Some(Packet { bytes, head, descriptors }))
    }
}

impl<S: AsFd> AsFd for Channel<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}
