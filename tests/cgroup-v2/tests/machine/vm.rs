//! A virtual machine that is emulated, so that it needs nothing of the host's processor.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Ends with this value.
pub(crate) struct Vm {
    qemu: Child,
    lines: Receiver<String>,
    console: PathBuf,
}

impl Vm {
    /// Boots a kernel whose first process is `init`. The kernel writes to `console`, the machine's report comes back.
    pub(crate) fn boot(qemu: &Path, kernel: &Path, initrd: &Path, init: &str, console: &Path) -> Self {
        let mut qemu = crate::program(qemu)
            .args([
                "-accel",
                "tcg,thread=multi",
                "-smp",
                "2",
                "-m",
                "768",
                "-nodefaults",
                "-display",
                "none",
                "-no-reboot",
            ])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initrd)
            .args(["-append", &format!("console=ttyS0 panic=-1 quiet rdinit=/{init}")])
            .args(["-serial", &format!("file:{}", console.display()), "-serial", "stdio"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("qemu starts");
        let stdout = qemu.stdout.take().expect("it was asked for");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line.trim_end().to_owned()).is_err() {
                    break;
                }
            }
        });
        Self { qemu, lines, console: console.into() }
    }

    /// Every line until the machine is off, or until it took too long.
    pub(crate) fn report(&mut self, bound: Duration) -> Vec<String> {
        let end = Instant::now() + bound;
        let mut all = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            println!("{line}");
            all.push(line);
        }
        all
    }

    /// What the kernel wrote.
    pub(crate) fn console(&self) -> String {
        let bytes = std::fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}
