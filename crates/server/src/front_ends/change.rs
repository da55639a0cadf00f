//! Changes the front ends of a running server.
//!
//! 1. All are checked with the new settings.
//! 2. In the reverse order of the list, each front end with changed settings follows them while its
//!    clients stay; or it is released, which fails while a client would lose data, and stops.
//! 3. In the order of the list, the requested front ends that did not follow are started.
//! 4. If one of these steps fails, those before it are undone: the server serves as before. A front
//!    end that cannot be restarted is reported.

use surface::{Error, Result};

use super::{Asked, FrontEnds};

impl FrontEnds {
    /// Changes from the settings `old` to `new`. Returns the names of the front ends that have
    /// changed.
    ///
    /// # Errors
    /// Those of the front ends. The server then serves as before, unless the message says
    /// otherwise.
    pub fn change(&mut self, old: &Asked<'_>, new: &Asked<'_>) -> Result<Vec<&'static str>> {
        self.kinds.iter().try_for_each(|kind| (kind.check)(new))?;
        let places: Vec<_> =
            (0..self.kinds.len()).filter(|place| !(self.kinds[*place].is_same)(old.args, new.args)).collect();
        let mut undo = Vec::new();
        match self.try_change(&places, new, &mut undo) {
            Ok(()) => Ok(places.into_iter().map(|place| self.kinds[place].name).collect()),
            Err(error) => Err(self.undo(error, undo, old)),
        }
    }

    fn try_change(&mut self, places: &[usize], new: &Asked<'_>, undo: &mut Vec<Step>) -> Result<()> {
        let mut left = Vec::new();
        for place in places.iter().rev() {
            let Some(at) = self.at(*place) else {
                left.push(*place);
                continue;
            };
            let front_end = &mut self.running[at].1;
            if front_end.follow(new)? {
                undo.push(Step::Followed(*place));
                continue;
            }
            if let Err(error) = front_end.release() {
                front_end.regain();
                return Err(error);
            }
            undo.push(Step::Stopped(*place));
            self.stop_one(at);
            left.push(*place);
        }
        for place in left.into_iter().rev() {
            self.start_one(place, new)?;
            undo.push(Step::Started(place));
        }
        Ok(())
    }

    /// Undoes the steps, the last one first, and returns the error with the steps that could not be
    /// undone.
    fn undo(&mut self, error: Error, steps: Vec<Step>, old: &Asked<'_>) -> Error {
        let mut lost = Vec::new();
        for step in steps.into_iter().rev() {
            let (place, undone) = match step {
                Step::Started(place) => {
                    if let Some(at) = self.at(place) {
                        self.undo_start(at);
                    }
                    continue;
                }
                Step::Stopped(place) => (place, self.start_one(place, old)),
                Step::Followed(place) => {
                    let at = self.at(place);
                    (place, at.map_or(Ok(()), |at| self.running[at].1.follow(old).map(drop)))
                }
            };
            if let Err(why) = undone {
                lost.push(format!("cannot restore {}: {why}", self.kinds[place].name));
            }
        }
        if lost.is_empty() {
            return error.context("nothing was changed");
        }
        error.context(lost.join("; "))
    }

    /// Returns the index of the running front end of that place.
    fn at(&self, place: usize) -> Option<usize> {
        self.running.iter().position(|(other, _)| *other == place)
    }

    /// Stops a front end that has just started. What an earlier server had left waits again.
    fn undo_start(&mut self, at: usize) {
        let front_end = &mut self.running[at].1;
        if front_end.has_resumed() {
            front_end.end_new_mounts();
        }
        self.stop_one(at);
    }

    fn stop_one(&mut self, at: usize) {
        let (_, mut front_end) = self.running.remove(at);
        front_end.close();
        front_end.stop();
    }
}

/// A step that was done, and may have to be undone.
enum Step {
    Followed(usize),
    Stopped(usize),
    Started(usize),
}
