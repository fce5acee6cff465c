"""Models that define their training steps and are trained together, such as a GAN: names for model modules."""

from nnlo_opt.engine.models.composite import CompositeAdapter, CompositeModel, Figures, ModelPart, PartTrainer

__all__ = ["CompositeAdapter", "CompositeModel", "Figures", "ModelPart", "PartTrainer"]
