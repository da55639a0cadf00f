//! A server with one configuration file, kept in step with a text.
//!
//! 0. If the text requires a start, the port must be free, or the server's own: a running server is
//!    not ended for a text that cannot take effect.
//! 1. The text is written next to the file in force, and checked by the server's own checker.
//! 2. It replaces the file, and the server reloads it, or is started.
//! 3. The server is queried for the configuration that it serves.
//! 4. Sessions that still have rights from the previous text are ended.
//! 5. If the server serves another configuration than the text, the previous text is restored, and
//!    the fault is reported.
//!
//! So a wrong configuration does not interrupt service.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use rustix::process::Pid;

use super::process::Process;
use super::{ports, tools};

/// The differences from one server to another.
pub trait Server {
    /// Returns the server's name for messages.
    fn name(&self) -> String;
    /// Returns the address at which it listens with a text.
    fn listens(&self, text: &str) -> SocketAddr;
    /// Returns whether the server of the pool is stopping: then no text is restored.
    fn is_given_up(&self) -> bool {
        false
    }
    /// Checks a file.
    ///
    /// # Errors
    /// The message of the checker.
    fn check(&self, file: &Path) -> Result<(), String>;
    /// Returns the command that starts it with a file, in the foreground.
    ///
    /// # Errors
    /// If it is not installed.
    fn command(&self, file: &Path) -> Result<Command, String>;
    /// Returns whether it must restart to change from one text to another.
    fn needs_restart(&self, old: &str, new: &str) -> bool;
    /// Makes it reload its file.
    ///
    /// # Errors
    /// A message.
    fn reload(&self, process: &Process, old: &str, new: &str) -> Result<(), String>;
    /// Ends sessions that still have rights from the previous text, after a changed one is in
    /// force. `sessions`: those that had begun before the change.
    fn end_sessions(&self, _process: &Process, _sessions: &[Pid], _old: &str, _new: &str) {}
    /// Queries it until it serves the configuration of a text, or the time is over.
    ///
    /// # Errors
    /// A message.
    fn serves(&self, process: &mut Process, text: &str) -> Result<(), String>;
}

/// A server with the text in force.
pub struct Kept {
    pub process: Process,
    /// The text that the server was confirmed to serve.
    in_force: Option<String>,
    /// A text that it failed to serve, and the reason.
    refused: Option<(String, String)>,
    /// An address that is not free, and the reason.
    taken: Option<(SocketAddr, String)>,
}

impl Kept {
    /// Adopts a server that may be running already.
    pub fn new(process: Process) -> Self {
        Self { process, in_force: None, refused: None, taken: None }
    }

    /// Ends the server.
    pub fn stop(&mut self) {
        self.process.stop();
        self.in_force = None;
        self.refused = None;
    }

    /// Makes a refused text due for another attempt.
    pub fn hurry(&mut self) {
        self.refused = None;
        self.process.hurry();
    }

    /// Brings the server in step with `text`, in the file `file`.
    ///
    /// # Errors
    /// A message.
    pub fn bring(&mut self, server: &dyn Server, file: &Path, text: &str) -> Result<(), String> {
        let was_alive = self.process.is_alive();
        if was_alive && self.in_force.as_deref() == Some(text) {
            return Ok(());
        }
        if let Some((refused, why)) = &self.refused
            && refused == text
            && (was_alive || !self.process.is_due())
        {
            return Err(why.clone());
        }
        let before = std::fs::read_to_string(file).ok();
        let goes_on = was_alive && before.as_deref().is_some_and(|before| !server.needs_restart(before, text));
        if !goes_on {
            self.check_port(server, text, was_alive)?;
        }
        let done = self.change(server, file, text, (was_alive, goes_on), before);
        match &done {
            Ok(()) => {
                self.refused = None;
                self.in_force = Some(text.to_owned());
                self.process.has_started(true);
            }
            Err(why) => {
                self.refused = Some((text.to_owned(), why.clone()));
                if !self.process.is_alive() {
                    self.process.has_started(false);
                }
            }
        }
        done
    }

    /// Fails if another process holds the port of a text. The port is checked every time; its
    /// holder is looked up once, because that walks all processes.
    fn check_port(&mut self, server: &dyn Server, text: &str, was_alive: bool) -> Result<(), String> {
        if !was_alive {
            // The processes of a killed server still hold its port.
            self.process.stop();
        }
        let at = server.listens(text);
        let is_known = self.taken.as_ref().is_some_and(|(taken, _)| *taken == at) && TcpListener::bind(at).is_err();
        if !is_known {
            self.taken = ports::taken(at, &self.process.all()).map(|why| (at, why));
        }
        let Some((_, why)) = &self.taken else { return Ok(()) };
        let name = server.name();
        Err(if was_alive {
            format!("{name}: the previous configuration stays in force: {why}")
        } else {
            format!("{name}: nothing is served: {why}")
        })
    }

    fn change(
        &mut self,
        server: &dyn Server,
        file: &Path,
        text: &str,
        (was_alive, goes_on): (bool, bool),
        before: Option<String>,
    ) -> Result<(), String> {
        let name = server.name();
        let new = tools::prepare(file, text)?;
        if let Err(why) = server.check(new.path()) {
            drop(new);
            return Err(match before {
                // After the server, or the pool's, was killed, the last good text is started again.
                Some(before) if was_alive || self.start(server, file, &before).is_ok() => {
                    format!("{name}: the configuration is refused, and the previous one stays in force: {why}")
                }
                _ => format!("{name}: the configuration is refused, and nothing is served: {why}"),
            });
        }
        new.publish().map_err(tools::unwritten(file))?;
        let done = match &before {
            Some(before) if goes_on => {
                let sessions = self.process.sessions();
                let reloaded = server.reload(&self.process, before, text);
                reloaded.and_then(|()| server.serves(&mut self.process, text)).inspect(|()| {
                    server.end_sessions(&self.process, &sessions, before, text);
                })
            }
            _ => {
                self.process.stop();
                self.start(server, file, text)
            }
        };
        let Err(why) = done else { return Ok(()) };
        let Some(before) = before.filter(|before| was_alive && before != text) else {
            return Err(format!("{name}: {why}"));
        };
        tools::write(file, &before)?;
        if server.is_given_up() {
            return Err(format!("{name}: {why}"));
        }
        let is_back = self.process.is_alive() && {
            let reloaded = server.reload(&self.process, text, &before);
            reloaded.and_then(|()| server.serves(&mut self.process, &before)).is_ok()
        };
        let back = if is_back { Ok(()) } else { self.restart(server, file, &before) };
        Err(match back {
            Ok(()) => {
                format!("{name}: the configuration did not take effect, and the previous one was restored: {why}")
            }
            Err(back) => format!("{name}: {why}; the previous configuration does not take effect either: {back}"),
        })
    }

    fn restart(&mut self, server: &dyn Server, file: &Path, text: &str) -> Result<(), String> {
        self.process.stop();
        self.start(server, file, text)
    }

    /// Starts it with the content of the file, which is `text`.
    fn start(&mut self, server: &dyn Server, file: &Path, text: &str) -> Result<(), String> {
        self.process.start(&mut server.command(file)?)?;
        server.serves(&mut self.process, text).map_err(|why| {
            let last = self.process.last_words();
            self.process.stop();
            // The port may have been taken since the check.
            let why = ports::taken(server.listens(text), &[]).unwrap_or(why);
            last.map_or(why.clone(), |last| format!("{why}; last output: {last}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A server that is `sleep`: the results of `check` and `serves` are those that its text names.
    #[derive(Default)]
    struct Stand {
        done: RefCell<Vec<String>>,
        reads: RefCell<String>,
        dies: Cell<bool>,
        port: Cell<u16>,
    }

    impl Server for Stand {
        fn name(&self) -> String {
            "stand".to_owned()
        }
        fn listens(&self, text: &str) -> SocketAddr {
            // Port 0 is always free.
            ([127, 0, 0, 1], if text.contains("taken") { self.port.get() } else { 0 }).into()
        }
        fn check(&self, file: &Path) -> Result<(), String> {
            let text = std::fs::read_to_string(file).unwrap();
            if text.contains("wrong") { Err("line 1 is wrong".to_owned()) } else { Ok(()) }
        }
        fn command(&self, file: &Path) -> Result<Command, String> {
            self.done.borrow_mut().push("start".to_owned());
            *self.reads.borrow_mut() = std::fs::read_to_string(file).unwrap();
            let mut command = Command::new("sleep");
            command.arg("600");
            Ok(command)
        }
        fn needs_restart(&self, old: &str, new: &str) -> bool {
            old.lines().next() != new.lines().next()
        }
        fn reload(&self, _: &Process, _: &str, new: &str) -> Result<(), String> {
            self.done.borrow_mut().push(format!("reload {}", new.replace('\n', " ")));
            *self.reads.borrow_mut() = new.to_owned();
            Ok(())
        }
        fn serves(&self, _: &mut Process, text: &str) -> Result<(), String> {
            let is_served = *self.reads.borrow() == text && !text.contains("unheard") && !self.dies.get();
            if is_served { Ok(()) } else { Err("it serves something else".to_owned()) }
        }
    }

    #[test]
    fn a_wrong_configuration_takes_nothing_away() {
        let dir = testkit::TempDir::new("exports-kept");
        for sub in ["state", "logs"] {
            std::fs::create_dir(dir.path().join(sub)).unwrap();
        }
        let _alone = testkit::starting();
        let file = dir.path().join("stand.conf");
        let stand = Stand::default();
        let mut kept = Kept::new(Process::find(dir.path(), "stand"));
        let done = || std::mem::take(&mut *stand.done.borrow_mut());
        let text = || std::fs::read_to_string(&file).unwrap();

        kept.bring(&stand, &file, "port\na").unwrap();
        assert_eq!(done(), ["start"]);
        let pid = kept.process.pid();
        kept.bring(&stand, &file, "port\na").unwrap();
        kept.bring(&stand, &file, "port\nb").unwrap();
        assert_eq!(done(), ["reload port b"]);

        // Refused by its checker: nothing is touched, and the message is repeated without another
        // attempt.
        for _ in 0..2 {
            let error = kept.bring(&stand, &file, "port\nwrong").unwrap_err();
            assert!(error.contains("stays in force: line 1 is wrong"), "{error}");
        }
        assert_eq!((text().as_str(), done().len(), kept.process.pid()), ("port\nb", 0, pid));
        assert!(!dir.join("stand.conf.new").exists());

        // Accepted by its checker, but not in force: the previous text is restored.
        let error = kept.bring(&stand, &file, "port\nunheard").unwrap_err();
        assert!(error.contains("was restored: it serves something else"), "{error}");
        assert_eq!(done(), ["reload port unheard", "reload port b"]);
        assert_eq!((text().as_str(), kept.process.pid()), ("port\nb", pid));
        kept.bring(&stand, &file, "port\nb").unwrap();

        // Another port requires a restart.
        kept.bring(&stand, &file, "other\nb").unwrap();
        assert_eq!(done(), ["start"]);
        assert_ne!(kept.process.pid(), pid);

        // A port of another process: the server keeps running, and the text takes effect once the
        // port is free.
        let pid = kept.process.pid();
        let holder = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        stand.port.set(holder.local_addr().unwrap().port());
        for _ in 0..2 {
            let error = kept.bring(&stand, &file, "taken\nb").unwrap_err();
            let words = format!("is held by process {} (", std::process::id());
            assert!(error.contains(&words) && error.contains("stays in force"), "{error}");
        }
        assert_eq!((text().as_str(), done().len(), kept.process.pid()), ("other\nb", 0, pid));
        drop(holder);
        kept.bring(&stand, &file, "taken\nb").unwrap();
        assert_eq!(done(), ["start"]);
        kept.bring(&stand, &file, "other\nb").unwrap();
        assert_eq!(done(), ["start"]);

        // Killed: the last good configuration is started, though the newest is wrong.
        kept.process.stop();
        assert!(kept.bring(&stand, &file, "other\nwrong").unwrap_err().contains("stays in force"));
        assert!(kept.process.is_alive());
        assert_eq!(*stand.reads.borrow(), "other\nb");
        kept.stop();

        stand.dies.set(true);
        let error = kept.bring(&stand, &file, "other\nb").unwrap_err();
        assert!(error.contains("it serves something else") && !kept.process.is_alive(), "{error}");
    }
}
