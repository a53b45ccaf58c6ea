//! Attempts to use everything up.

use std::fs::File;
use std::io::Write;

use crate::Outcome;
use crate::kernel::{call, fork, text};
use crate::paths::number;

pub(crate) fn attack(name: &str, arguments: &[&str]) -> Option<Outcome> {
    Some(match (name, arguments) {
        // Counts the processes that could be made; all of them stay until this one is killed or ends.
        ("fork-bomb", []) => {
            let mut count = 0;
            let refused = loop {
                match fork(|| {
                    std::thread::sleep(std::time::Duration::from_secs(30));
                    0
                }) {
                    Ok(_) => count += 1,
                    Err(errno) => break errno,
                }
                // Nobody needs more to see that there is no limit.
                if count > 20_000 {
                    break 0;
                }
            };
            Ok(format!("{count} {refused}"))
        }
        ("endless-fork-bomb", []) => loop {
            let _ = fork(|| {
                loop {
                    let _ = fork(|| 0);
                }
            });
        },
        ("memory-bomb", []) => {
            let mut kept = Vec::new();
            // A gibibyte at most, so that a host without limits survives the test.
            for _ in 0..1024 {
                kept.push(vec![1u8; 1024 * 1024]);
            }
            Ok(kept.len().to_string())
        }
        ("fill", [path]) => {
            let mut file = match File::create(path) {
                Ok(file) => file,
                Err(error) => return Some(Err(number(error))),
            };
            let block = vec![1u8; 64 * 1024];
            let mut bytes = 0u64;
            let refused = loop {
                match file.write(&block) {
                    Ok(count) => bytes += count as u64,
                    Err(error) => break number(error),
                }
                if bytes > 1 << 30 {
                    break 0;
                }
            };
            Ok(format!("{bytes} {refused}"))
        }
        ("fill-inodes", [directory]) => {
            let mut count = 0;
            let refused = loop {
                match File::create(format!("{directory}/{count}")) {
                    Ok(_) => count += 1,
                    Err(error) => break number(error),
                }
                if count > 1_000_000 {
                    break 0;
                }
            };
            Ok(format!("{count} {refused}"))
        }
        ("descriptors-to-the-limit", []) => {
            let mut count = 0;
            let refused = loop {
                match call(libc::SYS_dup, &[0]) {
                    Ok(_) => count += 1,
                    Err(errno) => break errno,
                }
                if count > 10_000_000 {
                    break 0;
                }
            };
            Ok(format!("{count} {refused}"))
        }
        // Takes terminals and keeps them until it is killed.
        ("terminals", []) => {
            let path = text("/dev/ptmx");
            let mut count = 0;
            let refused = loop {
                match call(
                    libc::SYS_open,
                    &[path.as_ptr() as usize, (libc::O_RDWR | libc::O_NOCTTY) as usize],
                ) {
                    Ok(_) => count += 1,
                    Err(errno) => break errno,
                }
            };
            println!("{count} {refused}");
            let _ = std::io::stdout().flush();
            std::thread::sleep(std::time::Duration::from_secs(60));
            Ok(count.to_string())
        }
        ("deep-directories", [depth]) => {
            let depth: usize = depth.parse().ok()?;
            let name = "a-directory-with-quite-a-long-name";
            let made = (0..depth)
                .take_while(|_| std::fs::create_dir(name).is_ok() && std::env::set_current_dir(name).is_ok());
            Ok(made.count().to_string())
        }
        ("shout", [bytes]) => {
            let mut left: u64 = bytes.parse().ok()?;
            let block = [b'x'; 64 * 1024];
            let mut output = std::io::stdout().lock();
            while left > 0 {
                let count = left.min(block.len() as u64);
                if output.write_all(&block[..count as usize]).is_err() {
                    break;
                }
                left -= count;
            }
            std::process::exit(0);
        }
        _ => return None,
    })
}
