//! The caller's standard input, read only while the command may want it.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat, major, minor};
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::{isatty, tcgetpgrp};
use tokio::sync::mpsc;

const CHUNK: usize = 64 * 1024;
/// How often a job in the background looks whether it was brought to the foreground.
const BACKGROUND_PAUSE: Duration = Duration::from_millis(200);

/// Whether there is anything to hand on: `/dev/null` is empty and need not be streamed.
pub(crate) fn is_empty() -> bool {
    const NULL_DEVICE: (u32, u32) = (1, 3);
    fstat(rustix::stdio::stdin()).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (major(stat.st_rdev), minor(stat.st_rdev)) == NULL_DEVICE
    })
}

/// Chunks of standard input until its end. A thread does the reading: making stdin non-blocking would change it for
/// every other process that has it open. The thread ends with its receiver or with the program.
pub(crate) fn stream() -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel(1);
    // Without a thread there is no input; the command sees its end at once.
    _ = std::thread::Builder::new()
        .name("stdin".into())
        .stack_size(128 * 1024)
        .spawn(move || read_all(&send));
    receive
}

fn read_all(send: &mpsc::Sender<Vec<u8>>) {
    let stdin = rustix::stdio::stdin();
    let mut buffer = vec![0; CHUNK];
    while !send.is_closed() {
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        // What is typed belongs to the foreground job; reading it from the background would stop this one.
        if isatty(stdin) && tcgetpgrp(stdin).is_ok_and(|foreground| foreground != getpgrp()) {
            std::thread::sleep(BACKGROUND_PAUSE);
            continue;
        }
        match rustix::io::read(stdin, &mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                if send.blocking_send(buffer[..length].to_vec()).is_err() {
                    return;
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}
