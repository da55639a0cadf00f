//! Losses and the end of the log as users ask for them. Owns nothing: `repair::loss` has the list.

use format::{LOSS_TEXT_BYTES_MAX, LossNote};
use store::base::loss::Loss;
use surface::Result;

use crate::pool::Pool;
use crate::repair::loss::remember;

impl Pool {
    /// Returns the loss that this opening accepted because
    /// [`accept_loss`](crate::PoolOptions::accept_loss) was set.
    pub fn accepted_loss(&self) -> Option<Loss> {
        self.core.repairs.losses.lock().accepted.clone()
    }

    /// Returns the losses of this and earlier repairs that were not acknowledged: when (seconds
    /// since 1970), and which data.
    pub fn losses(&self) -> Vec<(u64, String)> {
        let losses = self.core.repairs.losses.lock();
        losses.known.iter().filter(|loss| !loss.is_acknowledged).map(|loss| (loss.unix_s, loss.text.clone())).collect()
    }

    /// Records durably that acknowledged data or names are lost, until an administrator
    /// acknowledges it.
    ///
    /// # Errors
    /// When the map store fails.
    pub fn remember_loss(&self, text: &str) -> Result<()> {
        self.core.repairs.losses.lock().add(&self.core.vitals.env, text)
    }

    /// Acknowledges all losses so far. Durable on return.
    ///
    /// # Errors
    /// When the map store fails.
    pub fn acknowledge_losses(&self) -> Result<()> {
        let mut losses = self.core.repairs.losses.lock();
        let mut known = losses.known.clone();
        known.iter_mut().for_each(|loss| (loss.is_acknowledged, loss.is_untold) = (true, false));
        if known != losses.known {
            remember(&*self.core.vitals.env.store, &known)?;
            losses.known = known;
        }
        Ok(())
    }

    /// Records data that a repair of a volume's content is about to lose. Durable on return. When
    /// the repair has reported it to the user, it calls [`Self::mark_losses_reported`]; if it was
    /// killed before, the next repair finds the loss in [`Self::unreported_losses`], and does not
    /// record it again.
    ///
    /// # Errors
    /// When the map store fails.
    pub fn note_loss(&self, text: &str) -> Result<()> {
        let text = text[..text.floor_char_boundary(LOSS_TEXT_BYTES_MAX)].to_owned();
        let mut losses = self.core.repairs.losses.lock();
        if losses.known.iter().any(|loss| loss.is_untold && loss.text == text) {
            return Ok(());
        }
        let mut known = losses.known.clone();
        let unix_s = self.core.vitals.env.clock.unix_s();
        known.push(LossNote { is_untold: true, ..LossNote::new(unix_s, text) });
        remember(&*self.core.vitals.env.store, &known)?;
        losses.known = known;
        Ok(())
    }

    /// Returns losses that were recorded but not yet reported by a repair.
    pub fn unreported_losses(&self) -> Vec<String> {
        let losses = self.core.repairs.losses.lock();
        losses.known.iter().filter(|loss| loss.is_untold).map(|loss| loss.text.clone()).collect()
    }

    /// Marks all recorded losses as reported. They stay until they are acknowledged. Durable on
    /// return.
    ///
    /// # Errors
    /// When the map store fails.
    pub fn mark_losses_reported(&self) -> Result<()> {
        let mut losses = self.core.repairs.losses.lock();
        let mut known = losses.known.clone();
        known.iter_mut().for_each(|loss| loss.is_untold = false);
        if known != losses.known {
            remember(&*self.core.vitals.env.store, &known)?;
            losses.known = known;
        }
        Ok(())
    }

    /// The same, if a batch is torn there: acknowledged data is gone, or the batch was never
    /// acknowledged.
    pub fn torn_end(&self) -> Option<String> {
        let losses = self.core.repairs.losses.lock();
        losses.end.clone().filter(|_| losses.is_torn)
    }

    /// Describes the end of the log as this opening found it; `None` after an orderly end.
    pub fn log_end(&self) -> Option<String> {
        self.core.repairs.losses.lock().end.clone()
    }
}
